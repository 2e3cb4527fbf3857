"""Files of `torch.save` hold tensors, and nothing in them is executed."""

import collections
import os
import pickle
import shutil
import sys
import zipfile

import numpy as np
import pytest
import torch

from keras_transformer.backend.pytorch_file import read_pytorch_file
from keras_transformer.interoperability.tensors import PyTorchTensors

pytestmark = pytest.mark.once("torch")

FORMATS = {"zip": True, "legacy": False}
VALUES = torch.arange(24.0).reshape(4, 6) - 7.3
STATE = {
    "float32": VALUES,
    "float16": VALUES.half(),
    "bfloat16": VALUES.bfloat16(),
    "float64": VALUES.double(),
    "parameter": torch.nn.Parameter(VALUES + 1),
    "transposed": VALUES.t(),
    "slice": VALUES[1:, ::2],
    "tied": VALUES,
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
}


def save(content, path, format="zip"):
    torch.save(content, path, _use_new_zipfile_serialization=FORMATS[format])
    return path


def refusal(path):
    with pytest.raises(ValueError, match="must be a dictionary of tensors") as error:
        read_pytorch_file(path)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("format", FORMATS)
def test_the_tensors_of_a_file(tmp_path, format):
    path = save(collections.OrderedDict(STATE), tmp_path / "a.bin", format)
    tensors = PyTorchTensors(path)
    assert tensors.names == STATE.keys()
    for name, tensor in STATE.items():
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        assert tensors.info(name) == (shape, dtype)
        found = tensors.read([name], shape)
        assert found.dtype == "float32"
        np.testing.assert_array_equal(found, tensor.detach().float().numpy())


def test_integers_are_no_weights(tmp_path):
    path = save({"a": VALUES.long()}, tmp_path / "a.bin")
    tensors = PyTorchTensors(path)
    with pytest.raises(ValueError, match="'a' as floats .* type int64"):
        tensors.read(["a"], (4, 6))


def test_pytorch_is_not_installed(tmp_path, monkeypatch):
    path = save({"a": VALUES}, tmp_path / "a.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ModuleNotFoundError, match="a.bin requires .*pip install .torch"
    ):
        read_pytorch_file(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.bin"):
        read_pytorch_file(tmp_path / "a.bin")


# Hostile files.

CALLS = []


class Trap:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


TRAPS = {
    "a function": lambda: Trap(CALLS.append, 1),
    "a command": lambda: Trap(os.system, "exit 1"),
    "eval": lambda: Trap(eval, "CALLS.append(1)"),
    "getattr": lambda: Trap(getattr, "a", "title"),
    "a module": lambda: torch.nn.Linear(1, 1),
    "a dtype": lambda: torch.float32,
    "a list of tensors": lambda: [VALUES],
    "a dictionary": lambda: {"b": VALUES},
    "a sparse tensor": lambda: VALUES.to_sparse(),
    "a tensor without numbers": lambda: VALUES.to("meta"),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_anything_but_tensors_is_refused_and_not_run(tmp_path, name, format):
    content = {"first": VALUES, "a": TRAPS[name]()}
    refusal(save(content, tmp_path / "a.bin", format))
    assert not CALLS


def test_a_file_of_one_malicious_pickle(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(pickle.dumps(Trap(CALLS.append, 1)))
    refusal(path)
    assert not CALLS


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def rewrite(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in content.items():
            archive.writestr(name, value)


LIES = {  # of a tensor (3, 5) at offset 0, strides (5, 1), in 15 elements
    "a greater shape": (b"K\x03K\x05\x86", b"K\x04K\x05\x86"),
    "a much greater shape": (b"K\x03K\x05\x86", b"J\xff\xff\xff\x7fK\x05\x86"),
    "a negative size": (b"K\x03K\x05\x86", b"J\xff\xff\xff\xffK\x05\x86"),
    "a great stride": (b"K\x05K\x01\x86", b"K\x06K\x01\x86"),
    "a negative stride": (b"K\x05K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86"),
    "repeated rows": (
        b"K\x03K\x05\x86q\x08K\x05K\x01\x86",
        b"J\0\0\0\x10K\x05\x86q\x08K\x00K\x01\x86",
    ),
    "an unknown storage": (b"FloatStorage", b"OtherStorage"),
    "a path": (b"X\x01\0\0\x000q", b"X\x06\0\0\0../../q"),
}


@pytest.mark.parametrize("name", LIES)
def test_wrong_sizes(tmp_path, name):
    path = save({"a": torch.zeros(3, 5)}, tmp_path / "a.bin")
    content = members(path)
    [pickled] = [name for name in content if name.endswith("data.pkl")]
    old, new = LIES[name]
    assert old in content[pickled]
    content[pickled] = content[pickled].replace(old, new)
    rewrite(path, content)
    refusal(path)


def test_many_names_of_one_matrix(tmp_path):
    matrix = VALUES.repeat(99, 99)
    read_pytorch_file(save(dict.fromkeys("abcd", matrix), tmp_path / "a.bin"))
    path = save(dict.fromkeys("abcdefgh", matrix), tmp_path / "a.bin")
    assert "its tensors share memory" in refusal(path)


def test_a_compressed_archive(tmp_path):
    path = save({"a": torch.zeros(10**6)}, tmp_path / "a.bin")
    rewrite(path, members(path), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    assert "is compressed" in refusal(path)


# Damaged files.


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.999])
def test_truncated_files(tmp_path, format, share):
    path = save(STATE, tmp_path / "a.bin", format)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refusal(path)


@pytest.mark.parametrize("name", ["a.txt", "a.zip", "a.npz", "a.pkl"])
def test_other_files(tmp_path, name):
    path = tmp_path / name
    if name == "a.npz":
        np.savez(path, a=np.ones(3))
    elif name == "a.zip":
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "c").write_text("text")
        shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "b")
    else:
        path.write_bytes(pickle.dumps({"a": 1.0}) if name == "a.pkl" else b"text" * 99)
    refusal(path)
