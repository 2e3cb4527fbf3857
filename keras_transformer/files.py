"""Atomic writes of files and folders, locks, and JSON files."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None  # type: ignore[assignment]

# Prefix of unfinished files, before the process id and the name with its suffix.
UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Writes a file atomically, under a temporary name until it is complete.

    If an exception is raised, an existing file stays as it is. If several processes
    write the same file, the file of the last one to finish stays. A killed process
    leaves its unfinished file under the temporary name.

    Args:
        path: path of the file; an existing file is replaced.

    Yields:
        The temporary path, in the same folder and with the same suffix.
    """
    path = pathlib.Path(os.path.realpath(path))  # A link stays, its target is replaced.
    aside = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        yield aside
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file for an atomic write; see `written_aside`.

    Args:
        path: path of the file; an existing file is replaced.

    Yields:
        The open file, which has a temporary name.
    """
    with written_aside(path) as aside, open(aside, "wb") as file:
        yield file


@contextlib.contextmanager
def new_folder(
    filepath: str | os.PathLike, name: str = "filepath"
) -> Iterator[pathlib.Path]:
    """Writes a folder atomically, under a temporary name until it is complete.

    If an exception is raised, the folder and the parent folders created for it are
    removed.

    Args:
        filepath: path of the folder; it must not exist or be empty.
        name: name of the argument, for the error message.

    Yields:
        The temporary path of the folder, which does not exist yet.

    Raises:
        FileExistsError: if `filepath` exists and is not an empty folder.
        ValueError: if `filepath` is a mount point or the working folder.
    """
    target = pathlib.Path(os.path.realpath(filepath))
    if os.path.ismount(target) or target == pathlib.Path.cwd():
        raise ValueError(
            f"`{name}` must be a folder that can be replaced, not the root of a disk "
            f"or the working folder; received `{name}={str(filepath)!r}`. Choose one "
            "in it."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"`{name}` must not exist or be an empty folder; received "
            f"`{name}={str(target)!r}`, which is not empty. Choose the next version "
            "number, or remove it."
        )
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".export-", dir=target.parent
        ) as folder:
            written = pathlib.Path(folder, "written")
            yield written
            os.replace(written, target)
    except BaseException:
        with contextlib.suppress(OSError):  # Other processes may use the folders.
            for parent in made:
                parent.rmdir()
        raise


def checked_file(path: pathlib.Path, argument: str = "folder") -> pathlib.Path:
    """Checks that a file exists.

    Args:
        path: path of the file.
        argument: name of the argument with the folder, for the error message.

    Returns:
        `path`.

    Raises:
        FileNotFoundError: if the file does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"`{argument}` must have the file {path.name}; there is none in "
            f"{path.parent}."
        )
    return path


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
    """Reads a JSON file.

    Args:
        path: path of the file.
        kind: `dict` or `list`, the required type of the content.

    Returns:
        The content.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not a JSON file, or the content has another type.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file; it is not ({error}).") from error
    if not isinstance(content, kind):
        name = "object" if kind is dict else "list"
        raise ValueError(f"{path} must hold a JSON {name}; it holds {content!r:.80}.")
    return content


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes an indented JSON file atomically.

    Args:
        path: path of the file.
        content: dictionary or list.
    """
    text = json.dumps(content, ensure_ascii=False, indent=2)
    with written_whole(path) as file:
        file.write(f"{text}\n".encode())


def lock(file: BinaryIO) -> bool:
    """Locks a file until it is closed or the process ends.

    The lock excludes other callers of this function only.

    Args:
        file: an open file.

    Returns:
        `True` if the file was not locked, or if the system has no locks, as Windows.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # The file system has no locks.
        pass
    return True
