"""Files of `torch.save` are read as PyTorch reads them; nothing in them is executed."""

import collections
import io
import os
import pickle
import shutil
import struct
import zipfile

import numpy as np
import pytest
import torch

from keras_transformer.interoperability.pickled_data import read_pickle
from keras_transformer.interoperability.pytorch_file import open_pytorch_file

pytestmark = pytest.mark.once("torch")

FORMATS = {"zip": True, "legacy": False}
VALUES = torch.arange(24.0).reshape(4, 6) - 7.3
STATE = {
    "float32": VALUES,
    "float16": VALUES.half(),
    "bfloat16": VALUES.bfloat16(),
    "float64": VALUES.double(),
    "int64": VALUES.long(),
    "bool": VALUES > 0,
    "parameter": torch.nn.Parameter(VALUES + 1),
    "transposed": VALUES.t(),
    "slice": VALUES[1:, ::2],
    "tied": VALUES,
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
}


def save(content, path, format="zip", **options):
    torch.save(content, path, _use_new_zipfile_serialization=FORMATS[format], **options)
    return path


def read(path):
    with open_pytorch_file(path) as tensors:
        return {name: np.array(tensors.array(name)) for name in tensors.names}


def refusal(path):
    with pytest.raises(ValueError, match="must be a dictionary of tensors") as error:
        read(path)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_the_tensors_of_pytorch(tmp_path, format, protocol):
    path = save(STATE, tmp_path / "a.bin", format, pickle_protocol=protocol)
    found, expected = read(path), torch.load(path, weights_only=False)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == str(tensor.dtype).removeprefix("torch.")
        values = tensor.detach().double().numpy()
        np.testing.assert_array_equal(found[name].astype("float64"), values)


@pytest.mark.parametrize("format", FORMATS)
def test_the_state_of_a_module(tmp_path, format):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    state = module.state_dict()
    assert isinstance(state, collections.OrderedDict) and state._metadata
    found = read(save(state, tmp_path / "a.bin", format))
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())


# Hostile files.

CALLS = []


class Trap:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Attributes:
    """Sets its attributes when it is unpickled."""

    def __init__(self):
        self.weight = 1


TRAPS = {
    "a function": lambda: Trap(CALLS.append, 1),
    "a command": lambda: Trap(os.system, "exit 1"),
    "eval": lambda: Trap(eval, "CALLS.append(1)"),
    "getattr": lambda: Trap(getattr, "a", "title"),
    "torch.load": lambda: Trap(torch.load, "a.bin"),
    "a set": lambda: {1},
    "bytes": lambda: b"1",
    "an object": Attributes,
    "a module": lambda: torch.nn.Linear(1, 1),
    "a dtype": lambda: torch.float32,
    "a number": lambda: 3,
    "a string": lambda: "os.system",
    "a list of tensors": lambda: [VALUES],
    "a dictionary": lambda: {"b": VALUES},
    "a sparse tensor": lambda: VALUES.to_sparse(),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_anything_but_tensors_is_refused_and_not_run(tmp_path, name, format):
    content = {"first": VALUES, "a": TRAPS[name]()}
    message = refusal(save(content, tmp_path / "a.bin", format))
    if isinstance(content["a"], Trap):
        assert "never imported or called" in message
    assert not CALLS


def test_a_file_of_one_malicious_pickle(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(pickle.dumps(Trap(CALLS.append, 1)))
    refusal(path)
    assert not CALLS


GLOBAL = b"ccollections\nOrderedDict\n"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
HOSTILE = {
    "a class of another module": b"cos\nsystem\n(Vtrue\ntR.",
    "a dotted name": b"\x80\x04\x8c\x0bcollections\x8c\x0cabc.Iterable\x93.",
    "a name that is no string": b"\x80\x04K\x01K\x02\x93.",
    "a name that is a tuple": b"\x80\x04" + b")\x85" * 9 + b"\x8c\x01a\x93.",
    "INST": b"(Vtrue\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nVtrue\no.",
    "NEWOBJ": GLOBAL + b")\x81.",
    "EXT1": b"\x82\x01.",
    "PERSID": b"P1\n.",
    "a class with attributes": GLOBAL + b"N}Vx\nK\x01s\x86b.",
    "a constructor with content": GLOBAL + b"]\x85R.",
    "a tensor of no storage": TENSOR + b"(K\x01K\x00)))tR.",
    "a call of a number": b"K\x01)R.",
    "a call without a tuple": GLOBAL + b"]R.",
    "a storage that is no tuple": b"K\x01Q.",
    "a storage of an unknown class": b"(Vstorage\nK\x01V0\nVcpu\nK\x01tQ.",
    "an empty stack": b"R.",
    "an item of nothing": b"K\x01K\x02s.",
    "a mark that is missing": b"t.",
    "an entry that is missing": b"h\x05.",
    "a tuple as a key": b"}" + b")\x85" * 99_999 + b"K\x01s.",
    "a list as a key": b"}]K\x01s.",
    "a great text": b"X\xff\xff\xff\x7fa.",
    "a great number": b"\x8b\xff\xff\xff\x7f\x01.",
    "digits": b"I" + b"9" * 5000 + b"\n.",
    "no end": b"K\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malicious_pickles(name):
    with pytest.raises(ValueError):
        read_pickle(io.BytesIO(HOSTILE[name]))


def test_a_deep_pickle_is_read_without_recursion():
    deep = read_pickle(io.BytesIO(b")" + b"\x85" * 99_999 + b"."))
    assert type(deep) is tuple


def changed(path, old, new):
    """Replaces bytes of the pickle in an archive."""
    with zipfile.ZipFile(path) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    [name] = [name for name in content if name.endswith("data.pkl")]
    assert old in content[name]
    content[name] = content[name].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in content.items():
            archive.writestr(name, value)


LIES = {  # of a tensor (3, 5) at offset 0, strides (5, 1), in 15 elements
    "a greater shape": (b"K\x03K\x05\x86", b"K\x04K\x05\x86"),
    "a much greater shape": (b"K\x03K\x05\x86", b"J\xff\xff\xff\x7fK\x05\x86"),
    "a negative size": (b"K\x03K\x05\x86", b"J\xff\xff\xff\xffK\x05\x86"),
    "a size that is true": (b"K\x03K\x05\x86", b"\x88K\x05\x86"),
    "a great stride": (b"K\x05K\x01\x86", b"K\x06K\x01\x86"),
    "a negative stride": (b"K\x05K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86"),
    "repeated rows": (
        b"K\x03K\x05\x86q\x08K\x05K\x01\x86",
        b"J\0\0\0\x10K\x05\x86q\x08K\x00K\x01\x86",
    ),
    "fewer axes": (b"K\x03K\x05\x86", b"K\x0f\x85"),
    "more elements": (b"K\x0ftq", b"M\xff\xfftq"),
    "another storage": (b"FloatStorage", b"DoubleStorage"),
    "an unknown storage": (b"FloatStorage", b"OtherStorage"),
    "a path": (b"X\x01\0\0\x000q", b"X\x06\0\0\0../../q"),
}


@pytest.mark.parametrize("name", LIES)
def test_wrong_sizes(tmp_path, name):
    path = save({"a": torch.zeros(3, 5)}, tmp_path / "a.bin")
    changed(path, b"FloatStorage", b"FloatStorage")
    assert read(path)["a"].shape == (3, 5)
    changed(path, *LIES[name])
    refusal(path)


def test_many_names_of_one_storage(tmp_path):
    tied = {name: VALUES.repeat(99, 99) for name in "a"}
    read(save({name: tied["a"] for name in "abcd"}, tmp_path / "a.bin"))
    path = save({name: tied["a"] for name in "abcdefgh"}, tmp_path / "a.bin")
    assert "its tensors share memory" in refusal(path)


def test_a_compressed_archive(tmp_path):
    path = save({"a": torch.zeros(10**6)}, tmp_path / "a.bin")
    with zipfile.ZipFile(path) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in content.items():
            archive.writestr(name, value)
    assert path.stat().st_size < 10**5
    assert "is compressed" in refusal(path)


# Damaged files.


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.999])
def test_truncated_files(tmp_path, format, share):
    path = save(STATE, tmp_path / "a.bin", format)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refusal(path)


def test_a_changed_byte_of_an_archive(tmp_path):
    path = save({"a": VALUES}, tmp_path / "a.bin")
    content, values = bytearray(path.read_bytes()), VALUES.numpy().tobytes()
    content[content.index(values) + 10] ^= 1
    path.write_bytes(content)
    assert "CRC" in refusal(path)


def test_sizes_of_the_legacy_format(tmp_path):
    path = save({"a": VALUES}, tmp_path / "a.bin", "legacy")
    content, values = bytearray(path.read_bytes()), VALUES.numpy().tobytes()
    place = content.index(values) - 8
    assert struct.unpack_from("<q", content, place) == (24,)
    for count in (23, 25, -1, 2**62):
        struct.pack_into("<q", content, place, count)
        path.write_bytes(content)
        assert f"has {4 * count} bytes, not 96" in refusal(path)


@pytest.mark.parametrize("order", [b"big", b"little " * 99])
def test_another_byte_order(tmp_path, order):
    path = save({"a": VALUES}, tmp_path / "a.bin")
    with zipfile.ZipFile(path) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in content.items():
            archive.writestr(name, order if name.endswith("byteorder") else value)
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
