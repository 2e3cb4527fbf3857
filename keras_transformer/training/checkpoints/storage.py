"""Checkpoint files: written atomically, verified when they are read.

A checkpoint is an `.npz` file, which `numpy.load` opens. Its first member is a JSON
text with the structure of the state; the other members are the arrays. The zip format
stores a checksum for each member.
"""

import errno
import json
import math
import os
import pathlib
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_transformer_runtime.files import (
    UNFINISHED,
    check_is_file,
    check_zip_members,
    lock,
    written_whole,
)
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files

# Content of a checkpoint: dictionaries and lists of JSON values, arrays and tensors.
Content: TypeAlias = dict[str, Any]
# Raises an error if the content of the checkpoint at a path is not that of a run.
Check: TypeAlias = Callable[[pathlib.Path, Content], None]

LOCK = ".lock"
BEST = "best.npz"
_LOCKS: dict[str, int] = {}  # File descriptors of this process, by folder.


class DamagedCheckpoint(OSError):
    """Raised if a checkpoint file is damaged."""


def acquire_lock(folder: pathlib.Path) -> None:
    """Locks a folder against other processes; does nothing on Windows.

    The lock lasts until `release_lock` or the end of the process.
    """
    if sys.platform == "win32" or _has_lock(folder):
        return
    release_lock(folder)
    try:
        with open(folder / LOCK, "ab", opener=_open_no_link) as file:
            if lock(file):
                # The duplicate keeps the lock when `file` is closed.
                _LOCKS[os.path.realpath(folder)] = os.dup(file.fileno())
                return
    except OSError:  # The disk is full or read-only.
        return
    raise ValueError(
        "`folder` must not be in use by another process; received "
        f"`folder={str(folder)!r}`, where another process is training, or was "
        "interrupted and has not ended. End that process (of a notebook, the kernel), "
        "or use a separate folder for each run."
    )


def _open_no_link(path: str, flags: int) -> int:
    """Opens a file; raises `OSError` if it is a link or a pipe without a reader."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _has_lock(folder: pathlib.Path) -> bool:
    """Returns whether this process holds the lock, as after an interrupted run."""
    file = _LOCKS.get(os.path.realpath(folder))
    try:
        return file is not None and os.path.samestat(
            os.fstat(file), os.stat(folder / LOCK)
        )
    except FileNotFoundError:  # The folder was removed.
        return False


def release_lock(folder: pathlib.Path) -> None:
    """Releases the lock of `acquire_lock`, if this process holds it."""
    if (file := _LOCKS.pop(os.path.realpath(folder), None)) is not None:
        os.close(file)


def _close_inherited_locks() -> None:
    """Closes the locks in a forked process; the parent process keeps them."""
    for file in _LOCKS.values():
        os.close(file)
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)


def write_checkpoint(path: pathlib.Path, state: Mapping[str, object]) -> None:
    """Writes a checkpoint atomically.

    Tensors become arrays; scalar tensors become numbers, and tuples become lists.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_without_arrays(state, arrays)).encode()
    with written_whole(path, follow_links=False) as file:
        np.savez(file, np.frombuffer(text, "uint8"), *arrays)


def read_checkpoint(
    path: pathlib.Path, *names: str, check: Check | None = None
) -> Content:
    """Reads a checkpoint, or those of the named entries that it has.

    Raises `DamagedCheckpoint` if the file is damaged or `check` fails, and another
    `OSError` if the file temporarily cannot be read.
    """
    try:
        check_is_file(path)
        _check_sizes(path)
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            content = json.loads(arrays["arr_0"].tobytes())
            found = [name for name in names or content if name in content]
            state = {name: _with_arrays(content[name], arrays) for name in found}
        if check is not None:
            check(path, state)
        return state
    except Exception as error:  # A damaged zip file can raise almost any error.
        # Also EINVAL, if an offset in it lies before the beginning of the file.
        is_temporary = getattr(error, "errno", None) not in (None, errno.EINVAL)
        if is_temporary or isinstance(error, MemoryError):
            raise
        raise DamagedCheckpoint(f"{path} is damaged: {error!r}") from error


def _check_sizes(path: pathlib.Path) -> None:
    """Raises `ValueError` if arrays are declared to be larger than the file."""
    with zipfile.ZipFile(path) as archive:
        check_zip_members(archive, path.stat().st_size)
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read_header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, _, dtype = read_header(file)
                if math.prod(shape) * dtype.itemsize > member.file_size:
                    raise ValueError(
                        f"its array {member.filename} claims the shape {shape}, and "
                        f"has {member.file_size} bytes"
                    )


def readable_checkpoints(
    paths: Iterable[pathlib.Path], *names: str, check: Check | None = None
) -> Iterator[tuple[pathlib.Path, Content]]:
    """Reads checkpoints one after the other and skips damaged ones with a warning."""
    for path in paths:
        try:
            yield path, read_checkpoint(path, *names, check=check)
        except DamagedCheckpoint as error:
            warnings.warn(f"A checkpoint is skipped: {error}", stacklevel=2)


def remove_superseded(folder: pathlib.Path, newest: RunPosition, keep: int) -> None:
    """Removes the checkpoints that are no longer needed.

    The two newest checkpoints and those at the end of the last `keep` epochs remain. A
    checkpoint after `newest` is removed: it is damaged, or the run would have resumed
    from it.
    """
    files = checkpoint_files(folder)
    positions = [position for position in files if position <= newest]
    ends = [position for position in positions if not position.batches]
    kept = {files[position] for position in (*positions[-2:], *ends[-keep:])}
    for path in files.values():
        if path not in kept:
            path.unlink(missing_ok=True)


def remove_unfinished(folder: pathlib.Path) -> None:
    """Removes the unfinished files of processes that were killed while writing."""
    for name in ("epoch-*.npz", BEST):
        for path in folder.glob(f"{UNFINISHED}{name}-*"):
            shutil.rmtree(path, ignore_errors=True)


def copied(state: Mapping[str, object]) -> Content:
    """Copies the content of a checkpoint, which later steps would change."""
    arrays: list[np.ndarray] = []
    plain = _without_arrays(state, arrays)
    copies = {f"arr_{n}": array.copy() for n, array in enumerate(arrays, start=1)}
    result: Content = _with_arrays(plain, copies)
    return result


def can_be_saved(value: object) -> bool:
    """Returns whether a checkpoint can store a value without changing it.

    Such values are numbers, strings, `None`, arrays, tensors, and lists, tuples and
    dictionaries of them, whose keys are strings.
    """
    if isinstance(value, dict):
        has_names = all(isinstance(key, str) for key in value)
        return has_names and all(map(can_be_saved, value.values()))
    if isinstance(value, list | tuple):
        return all(map(can_be_saved, value))
    plain = _without_arrays(value, [])
    return plain is None or isinstance(plain, bool | int | float | str | dict)


def _without_arrays(value: Any, arrays: list[np.ndarray]) -> object:
    """Converts `value` to JSON values; appends its arrays to `arrays`."""
    if isinstance(value, dict):
        return {name: _without_arrays(item, arrays) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item, arrays) for item in value]
    if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)[()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": f"arr_{len(arrays)}", "dtype": value.dtype.name}
    return value


def _with_arrays(value: object, arrays: Mapping[str, np.ndarray]) -> Any:
    """Inverts `_without_arrays`."""
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "dtype"}:
        # NumPy's format stores bfloat16 as untyped pairs of bytes.
        return arrays[value["array"]].view(value["dtype"])
    return {name: _with_arrays(item, arrays) for name, item in value.items()}
