"""Files that are there once they are complete, and not before."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

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
