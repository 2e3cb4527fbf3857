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
from typing import Any

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

LOCK = ".lock"
BEST = "best.npz"
_LOCKS: dict[str, int] = {}  # File descriptors of this process, by folder.


class DamagedCheckpoint(OSError):
    """Raised if a checkpoint file is damaged."""


def acquire_lock(folder: pathlib.Path) -> None:
    """Locks a folder against other processes; does nothing on Windows.

    The lock lasts until `release_lock` or the end of the process.

    Args:
        folder: path of the folder with the checkpoints.

    Raises:
        ValueError: if another process holds the lock.
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
    """Releases the lock of `acquire_lock`, if this process holds it.

    Args:
        folder: path of the folder with the checkpoints.
    """
    if (file := _LOCKS.pop(os.path.realpath(folder), None)) is not None:
        os.close(file)


def _close_inherited_locks() -> None:
    """Closes the locks in a forked process; the parent process keeps them."""
    for file in _LOCKS.values():
        os.close(file)
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)


def write_checkpoint(path: pathlib.Path, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically.

    Args:
        path: path of the file, which is replaced if it exists.
        state: dictionaries and lists of JSON values, NumPy arrays and tensors. Tensors
            become arrays; scalar tensors become numbers.

    Raises:
        OSError: if the file cannot be written.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_without_arrays(state, arrays)).encode()
    with written_whole(path, follow_links=False) as file:
        np.savez(file, np.frombuffer(text, "uint8"), *arrays)


def read_checkpoint(path: pathlib.Path, *names: str) -> dict[str, Any]:
    """Reads a checkpoint or some entries of it.

    Args:
        path: path of the file.
        *names: names of the entries to read. Default: all.

    Returns:
        Dictionary of the entries that the file has. Tuples are read as lists.

    Raises:
        DamagedCheckpoint: if the file is damaged.
        OSError: if the file temporarily cannot be read.
    """
    try:
        check_is_file(path)
        _check_sizes(path)
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            state = json.loads(arrays["arr_0"].tobytes())
            return {
                name: _with_arrays(state[name], arrays)
                for name in names or state
                if name in state
            }
    except Exception as error:  # A damaged zip file can raise almost any error.
        # Also EINVAL, if an offset in it lies before the beginning of the file.
        is_temporary = getattr(error, "errno", None) not in (None, errno.EINVAL)
        if is_temporary or isinstance(error, MemoryError):
            raise
        raise DamagedCheckpoint(f"{path} is damaged: {error}") from error


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
    paths: Iterable[pathlib.Path],
    *names: str,
    check: Callable[[pathlib.Path, dict[str, Any]], None] | None = None,
) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Reads checkpoints one after the other and skips damaged ones with a warning.

    Args:
        paths: paths of the files.
        *names: names of the entries to read. Default: all.
        check: function of the path and the entries. It raises an error if the entries
            are not those of a run.

    Yields:
        The path and the entries of each file that is not damaged.
    """
    for path in paths:
        try:
            state = read_checkpoint(path, *names)
            if check is not None:
                run_check(check, path, state)
        except DamagedCheckpoint as error:
            warnings.warn(f"A checkpoint is skipped: {error}", stacklevel=2)
        else:
            yield path, state


def run_check(
    check: Callable[[pathlib.Path, dict[str, Any]], None],
    path: pathlib.Path,
    state: dict[str, Any],
) -> None:
    """Checks the entries of a checkpoint.

    Args:
        check: function of the path and the entries. It raises an error if the entries
            are not those of a run.
        path: path of the checkpoint.
        state: its entries.

    Raises:
        DamagedCheckpoint: if `check` raises an error.
    """
    try:
        check(path, state)
    except Exception as error:  # Entries of any type can raise almost any error.
        raise DamagedCheckpoint(f"{path} is damaged: {error!r}") from error


def remove_superseded(folder: pathlib.Path, newest: RunPosition, keep: int) -> None:
    """Removes the checkpoints that are no longer needed.

    The two newest checkpoints and those at the end of the last `keep` epochs remain. A
    checkpoint after `newest` is removed: it is damaged, or the run would have resumed
    from it.

    Args:
        folder: path of the folder with the checkpoints.
        newest: position of the checkpoint that was written last.
        keep: int, number of checkpoints at the end of an epoch to keep.
    """
    files = checkpoint_files(folder)
    positions = [position for position in files if position <= newest]
    ends = [position for position in positions if not position.batches]
    kept = {files[position] for position in (*positions[-2:], *ends[-keep:])}
    for path in files.values():
        if path not in kept:
            path.unlink(missing_ok=True)


def remove_unfinished(folder: pathlib.Path) -> None:
    """Removes the unfinished files of processes that were killed while writing.

    Args:
        folder: path of the folder with the checkpoints.
    """
    for name in ("epoch-*.npz", BEST):
        for path in folder.glob(f"{UNFINISHED}{name}-*"):
            shutil.rmtree(path, ignore_errors=True)


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the content of a checkpoint, which later steps would change.

    Args:
        state: the content, as for `write_checkpoint`.

    Returns:
        Dictionary with the same values, as `read_checkpoint` would return it.
    """
    arrays: list[np.ndarray] = []
    plain = _without_arrays(state, arrays)
    copies = {f"arr_{n}": array.copy() for n, array in enumerate(arrays, start=1)}
    result: dict[str, Any] = _with_arrays(plain, copies)
    return result


def can_be_saved(value: Any) -> bool:
    """Returns whether a checkpoint can store a value without changing it.

    Args:
        value: the value of an attribute.

    Returns:
        bool, whether `value` is a number, a string, `None`, an array, a tensor, or a
        list, tuple or dictionary of them. The keys of dictionaries must be strings.
    """
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and can_be_saved(
            list(value.values())
        )
    if isinstance(value, list | tuple):
        return all(map(can_be_saved, value))
    plain = _without_arrays(value, [])
    return plain is None or isinstance(plain, bool | int | float | str | dict)


def _without_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
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


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Inverts `_without_arrays`."""
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "dtype"}:
        # NumPy's format stores bfloat16 as untyped pairs of bytes.
        return arrays[value["array"]].view(value["dtype"])
    return {name: _with_arrays(item, arrays) for name, item in value.items()}
