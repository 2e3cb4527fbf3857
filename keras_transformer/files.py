"""Files and folders that are there once they are complete, and files of JSON."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished-"  # Before process and name, so that the ending stays.


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Lets a file be written under another name, and gives it its own at the end.

    If something is raised in between, what was there before stays. Of several
    processes that write the same file, the last to end has written it. One that is
    killed leaves what it has written, under the other name.

    Args:
        path: the file, which is replaced if it is there.

    Yields:
        The path to write to, in the same folder and with the same ending.
    """
    path = pathlib.Path(os.path.realpath(path))  # what a link leads to, not the link
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
    """Opens a file that is there once it is complete.

    Args:
        path: the file, which is replaced if it is there.

    Yields:
        The file to write to, which has another name as yet.
    """
    with written_aside(path) as aside, open(aside, "wb") as file:
        yield file


@contextlib.contextmanager
def new_folder(
    filepath: str | os.PathLike, name: str = "filepath"
) -> Iterator[pathlib.Path]:
    """Lets a folder be written under another name, and gives it its own at the end.

    If something is raised in between, nothing is left, not even the folders above it
    that were made for it.

    Args:
        filepath: the folder; it must not exist or be empty.
        name: the argument that it is, for the error message.

    Yields:
        A path that does not exist yet, where the folder is to be written.

    Raises:
        FileExistsError: if `filepath` exists and is not an empty folder.
        ValueError: if it is where a disk is mounted.
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
        with contextlib.suppress(OSError):  # others may have written there
            for parent in made:
                parent.rmdir()
        raise


def checked_file(path: pathlib.Path, argument: str = "folder") -> pathlib.Path:
    """Makes sure that a folder has a file.

    Args:
        path: the file.
        argument: the argument that gave the folder, for the error message.

    Returns:
        `path`.

    Raises:
        FileNotFoundError: if there is no such file.
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
        path: the file.
        kind: `dict` or `list`, what it must hold.

    Returns:
        What it holds.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds something else.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file; it is not ({error}).") from error
    if not isinstance(content, kind):
        wanted = "object" if kind is dict else "list"
        raise ValueError(f"{path} must hold a JSON {wanted}; it holds {content!r:.80}.")
    return content


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a JSON file that people can read, too; it is there once it is complete.

    Args:
        path: the file.
        content: dictionary or list to write.
    """
    text = json.dumps(content, ensure_ascii=False, indent=2)
    with written_whole(path) as file:
        file.write(f"{text}\n".encode())


def lock(file: BinaryIO) -> bool:
    """Keeps a file from all others who ask, until it is closed or the process ends.

    Args:
        file: an open file.

    Returns:
        Whether it was free; always `True` where there are no locks, as on Windows.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True
