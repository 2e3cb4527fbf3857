"""Checkpoints on disk: one file each, whole or absent, checked when read.

A file is an `.npz`, which `numpy.load` opens: the arrays, and before them a JSON text
that says where each belongs. The zip format has a checksum for each of its members.
"""

import errno
import json
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.files import UNFINISHED, lock, written_whole

_CLAIMED: dict[str, int] = {}  # The locked files of this process, by folder.
LOCK = ".lock"
_NAME = re.compile(r"epoch-(\d+)(?:-batch-(\d+))?\.npz")


class DamagedCheckpoint(OSError):
    """Raised for a checkpoint that can never be read."""


class Position(NamedTuple):
    """How far a run has got: complete epochs, and batches of the next one."""

    epoch: int
    batch: int = 0

    @property
    def file_name(self) -> str:
        """File name of the checkpoint."""
        batch = f"-batch-{self.batch:06}" if self.batch else ""
        return f"epoch-{self.epoch:04}{batch}.npz"


def claim(folder: pathlib.Path) -> None:
    """Keeps other processes from writing checkpoints in a folder; not on Windows.

    Args:
        folder: where the checkpoints are. `release` gives it free, as does the end of
            the process.

    Raises:
        ValueError: if another process has claimed it.
    """
    if sys.platform == "win32" or _is_claimed(folder):
        return
    release(folder)
    try:
        with open(folder / LOCK, "ab") as file:
            if lock(file):
                # The copy keeps the lock.
                _CLAIMED[os.path.realpath(folder)] = os.dup(file.fileno())
                return
    except OSError:  # on a disk that is full or only for reading
        return
    raise ValueError(
        "`folder` must not have the checkpoints of another process; received "
        f"`folder={str(folder)!r}`, where one is training, or was interrupted and has "
        "not ended. End it (of a notebook, the kernel), or give each run a folder of "
        "its own."
    )


def _is_claimed(folder: pathlib.Path) -> bool:
    """Tells whether this process has the lock, as after a run that was interrupted."""
    file = _CLAIMED.get(os.path.realpath(folder))
    try:
        return file is not None and os.path.samestat(
            os.fstat(file), os.stat(folder / LOCK)
        )
    except FileNotFoundError:  # The folder has been removed since.
        return False


def release(folder: pathlib.Path) -> None:
    """Ends what `claim` began.

    Args:
        folder: where the checkpoints are.
    """
    if (file := _CLAIMED.pop(os.path.realpath(folder), None)) is not None:
        os.close(file)


def _leave_claims() -> None:
    """Leaves the locks to the process that has them, in one that it has forked."""
    for file in _CLAIMED.values():
        os.close(file)
    _CLAIMED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_claims)


def checkpoint_files(folder: pathlib.Path) -> dict[Position, pathlib.Path]:
    """Finds the checkpoints in a folder.

    Args:
        folder: where to look; it need not exist.

    Returns:
        The files by position, oldest first.
    """
    found = {}
    for path in folder.glob("*.npz"):
        if match := _NAME.fullmatch(path.name):
            epoch, batch = match.groups(default="0")
            found[Position(int(epoch), int(batch))] = path
    return dict(sorted(found.items()))


def write_checkpoint(path: pathlib.Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
        path: the file, which is replaced if it exists.
        state: dictionaries and lists of JSON values, of NumPy arrays and of tensors,
            which become arrays or, without axes, numbers.

    Raises:
        OSError: if it cannot be written.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_without_arrays(state, arrays)).encode()
    with written_whole(path) as file:
        np.savez(file, np.frombuffer(text, "uint8"), *arrays)


def read_checkpoint(path: pathlib.Path, *names: str) -> dict[str, Any]:
    """Reads a checkpoint or parts of it.

    Args:
        path: the file.
        *names: the entries to read; all if there are none.

    Returns:
        What was written. Tuples have become lists.

    Raises:
        DamagedCheckpoint: if the file is damaged.
        OSError: if it cannot be read now, but perhaps later.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            state = json.loads(arrays["arr_0"].tobytes())
            return {name: _with_arrays(state[name], arrays) for name in names or state}
    except Exception as error:  # a damaged zip file can raise almost anything
        # A damaged one can also say to read before its beginning: EINVAL.
        unreadable = getattr(error, "errno", None) not in (None, errno.EINVAL)
        if unreadable or isinstance(error, MemoryError):
            raise
        raise DamagedCheckpoint(f"{path} is not a whole checkpoint: {error}") from error


def readable_checkpoints(
    paths: Iterable[pathlib.Path], *names: str
) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Reads checkpoints one after the other, skipping damaged ones.

    Args:
        paths: the files.
        *names: the entries to read; all if there are none.

    Yields:
        Each file with its content. A warning names each damaged one.
    """
    for path in paths:
        try:
            state = read_checkpoint(path, *names)
        except DamagedCheckpoint as error:
            warnings.warn(f"Passed over a checkpoint: {error}", stacklevel=2)
        else:
            yield path, state


def remove_superseded(folder: pathlib.Path, newest: Position, keep: int) -> None:
    """Removes the checkpoints that are no longer needed.

    The two newest stay, as do those at the end of the last `keep` epochs. Any beyond
    `newest` were damaged: the run had to start before them.

    Args:
        folder: where the checkpoints are.
        newest: the one written last.
        keep: int, how many ends of epochs to keep.
    """
    files = checkpoint_files(folder)
    positions = [position for position in files if position <= newest]
    ends = [position for position in positions if not position.batch]
    for position in files.keys() - {*positions[-2:], *ends[-keep:]}:
        files[position].unlink(missing_ok=True)


def remove_unfinished(folder: pathlib.Path) -> None:
    """Removes unfinished files of processes that were killed while writing.

    Args:
        folder: where the checkpoints are.
    """
    for path in folder.glob(UNFINISHED + "*-epoch-*.npz"):
        path.unlink(missing_ok=True)


def can_be_saved(value: Any) -> bool:
    """Tells whether a checkpoint can hold a value such that it comes back the same.

    Args:
        value: what a callback remembers.

    Returns:
        Whether it consists of numbers, strings, `None`, arrays, tensors, and of lists,
        tuples and dictionaries of them whose keys are strings.
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
    """Returns `value` as JSON; its arrays are appended to `arrays`."""
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


def _with_arrays(value: Any, arrays: Any) -> Any:
    """Inverts `_without_arrays`."""
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "dtype"}:
        # NumPy's format stores bfloat16 as untyped pairs of bytes.
        return arrays[value["array"]].view(value["dtype"])
    return {name: _with_arrays(item, arrays) for name, item in value.items()}
