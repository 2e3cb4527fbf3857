import io
import json
import os
import re
import resource
import zipfile

import keras
import numpy as np
import pytest

from keras_transformer.training.checkpoints.storage import (
    DamagedCheckpoint,
    acquire_lock,
    copied,
    read_checkpoint,
    readable_checkpoints,
    release_lock,
    remove_superseded,
    remove_unfinished,
    write_checkpoint,
)
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files

# Only NumPy reads and writes the files.
pytestmark = pytest.mark.once("torch")

STATE = {
    "model": [
        {"name": "kernel", "value": np.arange(6, dtype="float32").reshape(2, 3)},
        {"name": "scalar", "value": np.array(7, "int64")},
    ],
    "history": {"loss": [1 / 3, float("inf"), 1e-300], "epoch": [0, 1, 2]},
    "nothing": None,
    "flags": {"stopped": True, "name": "ünïcode", "empty": {}},
}


def assert_same(found, expected):
    """Equal in structure, types and values."""
    keras.tree.assert_same_structure(found, expected)
    for a, b in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        assert type(a) is type(b)
        np.testing.assert_array_equal(a, b, strict=isinstance(b, np.ndarray))


def test_round_trip(tmp_path):
    write_checkpoint(tmp_path / "a.npz", STATE)
    assert_same(read_checkpoint(tmp_path / "a.npz"), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_some_entries_are_read(tmp_path):
    write_checkpoint(tmp_path / "a.npz", STATE)
    part = read_checkpoint(tmp_path / "a.npz", "model", "missing", "nothing")
    assert_same(part, {"model": STATE["model"], "nothing": None})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "uint32", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_every_type_is_kept(tmp_path, dtype, shape):
    value = np.ones(shape, "float32").astype(dtype)
    write_checkpoint(tmp_path / "a.npz", {"value": value})
    read = read_checkpoint(tmp_path / "a.npz")["value"]
    np.testing.assert_array_equal(read, value, strict=True)


def test_tuples_and_numpy_scalars_become_json_values(tmp_path):
    write_checkpoint(tmp_path / "a.npz", {"a": (1, np.float32(0.5)), "b": np.int8(3)})
    assert_same(read_checkpoint(tmp_path / "a.npz"), {"a": [1, 0.5], "b": 3})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_copy_stays_as_it_is(tmp_path, dtype):
    value, numbers = np.ones((2, 3), dtype), [1, 2]
    state = {"value": value, "attributes": {"numbers": numbers, "pair": (3, 0.5)}}
    write_checkpoint(tmp_path / "a.npz", state)
    copy = copied(state)
    value += 1
    numbers.append(3)
    assert_same(copy, read_checkpoint(tmp_path / "a.npz"))


def test_a_changed_byte_is_detected(tmp_path):
    path = tmp_path / "a.npz"
    write_checkpoint(path, STATE)
    content = path.read_bytes()
    detected = 0
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 0xFF
        path.write_bytes(damaged)
        try:
            assert_same(read_checkpoint(path), STATE)
        except DamagedCheckpoint:
            detected += 1
    assert detected > len(content) / 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(tmp_path, share):
    path = tmp_path / "a.npz"
    write_checkpoint(path, STATE)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(OSError, match=f"{re.escape(str(path))} is damaged"):
        read_checkpoint(path)


def test_a_full_disk_does_not_change_the_file(tmp_path):
    path = tmp_path / "a.npz"
    write_checkpoint(path, STATE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_checkpoint(path, {"large": np.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_same(read_checkpoint(path), STATE)
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_files_are_skipped(tmp_path):
    paths = [tmp_path / name for name in ("a.npz", "b.npz", "c.npz")]
    for number, path in enumerate(paths):
        write_checkpoint(path, {"number": number})
    paths[1].write_bytes(b"PK")
    with pytest.warns(UserWarning, match="A checkpoint is skipped: .*b.npz"):
        found = list(readable_checkpoints(paths))
    assert found == [(paths[0], {"number": 0}), (paths[2], {"number": 2})]


# Names.


def touch(folder, *positions):
    for position in positions:
        (folder / position.file_name).touch()


@pytest.mark.parametrize(
    "position, name, resumes_at",
    [
        (RunPosition(3), "epoch-0003.npz", "epoch 4, batch 1"),
        (RunPosition(0, 2), "epoch-0001-after-batch-000002.npz", "epoch 1, batch 3"),
        (RunPosition(2, 20), "epoch-0003-after-batch-000020.npz", "epoch 3, batch 21"),
    ],
)
def test_epochs_and_batches_are_counted_from_1(position, name, resumes_at):
    assert position.file_name == name
    assert position.resumes_at == resumes_at
    assert RunPosition.from_file_name(name) == position


def test_files_are_found_in_the_order_of_the_run(tmp_path):
    positions = [
        RunPosition(0, 20),
        RunPosition(1),
        RunPosition(1, 9),
        RunPosition(12345),
    ]
    touch(tmp_path, *reversed(positions))
    for other in ("model.npz", "epoch-1.keras", ".unfinished-epoch-0001.npz"):
        (tmp_path / other).touch()
    found = checkpoint_files(tmp_path)
    assert list(found) == positions
    assert found[RunPosition(1, 9)] == tmp_path / "epoch-0002-after-batch-000009.npz"
    assert checkpoint_files(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    "before, newest, keep, after",
    [
        # Within an epoch, only the two newest remain.
        ([(0, 2), (0, 4), (0, 6)], (0, 6), 3, [(0, 4), (0, 6)]),
        ([(1, 0), (1, 2), (1, 4), (1, 6)], (1, 6), 3, [(1, 0), (1, 4), (1, 6)]),
        # The ends of the last epochs remain, and the two newest.
        ([(1, 0), (2, 0), (3, 0), (3, 2), (4, 0)], (4, 0), 3, [2, 3, (3, 2), 4]),
        ([(1, 0), (2, 0), (3, 0)], (3, 0), 1, [2, 3]),
        # A file after the newest was damaged.
        ([(1, 0), (1, 2), (3, 0), (4, 0)], (1, 2), 3, [1, (1, 2)]),
    ],
)
def test_superseded_files_are_removed(tmp_path, before, newest, keep, after):
    touch(tmp_path, *(RunPosition(*each) for each in before))
    (tmp_path / "other.npz").touch()
    remove_superseded(tmp_path, RunPosition(*newest), keep)
    after = [
        RunPosition(*each) if isinstance(each, tuple) else RunPosition(each)
        for each in after
    ]
    assert list(checkpoint_files(tmp_path)) == after
    assert (tmp_path / "other.npz").exists()


def test_unfinished_files_are_removed(tmp_path):
    touch(tmp_path, RunPosition(1))
    for name in (
        "epoch-0002.npz",
        "epoch-0001-after-batch-000007.npz",
        "best.npz",
        "a",
    ):
        (tmp_path / f".unfinished-{name}-a7").mkdir()
        (tmp_path / f".unfinished-{name}-a7" / name).touch()
    remove_unfinished(tmp_path)
    left = [".unfinished-a-a7", "epoch-0001.npz"]
    assert sorted(os.listdir(tmp_path)) == left


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "Input/output error")])
def test_a_temporary_error_is_raised(tmp_path, monkeypatch, error):
    def fail(*args, **options):
        raise error

    write_checkpoint(tmp_path / "epoch-0001.npz", STATE)
    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(type(error)):
        next(readable_checkpoints([tmp_path / "epoch-0001.npz"]))


def write_with_header(path, shape, dtype="<f4", more=b""):
    """Writes a checkpoint whose array claims a shape, but holds eight bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    text = json.dumps({"model": {"array": "arr_1", "dtype": "float32"}}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if more else 0) as archive:
        with archive.open("arr_0.npy", "w") as file:
            np.lib.format.write_array(file, np.frombuffer(text, "uint8"))
        archive.writestr("arr_1.npy", header.getvalue() + bytes(8) + more)


@pytest.mark.parametrize("shape", [(25 * 10**12,), (10**6, 10**6), (2**62,), (999,)])
def test_an_array_that_is_larger_than_the_file(tmp_path, shape):
    write_with_header(tmp_path / "a.npz", shape)
    with pytest.raises(DamagedCheckpoint, match=r"a.npz is damaged: .* claims the sha"):
        read_checkpoint(tmp_path / "a.npz")
    write_checkpoint(tmp_path / "b.npz", STATE)
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    with pytest.warns(UserWarning, match="a.npz is damaged"):
        ((found, _),) = readable_checkpoints(paths)
    assert found == paths[1]


def test_a_compressed_file_that_expands(tmp_path):
    write_with_header(tmp_path / "a.npz", (250_002,), more=bytes(1_000_000))
    with pytest.raises(DamagedCheckpoint, match="its members would have 1000313"):
        read_checkpoint(tmp_path / "a.npz")


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(DamagedCheckpoint, match="a.npz is damaged: .* must be a file"):
        read_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_that_is_a_pipe_or_a_link(tmp_path, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / ".lock")
    else:
        (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    acquire_lock(tmp_path)
    release_lock(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
