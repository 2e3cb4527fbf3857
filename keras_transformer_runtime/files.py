"""Files and folders that are written whole or not at all, locks, and JSON files."""

import contextlib
import copy
import glob
import json
import os
import pathlib
import shutil
import stat
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None  # type: ignore[assignment]

# Prefix of temporary folders. The final name and a random part follow.
UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def written_whole(
    path: str | os.PathLike, follow_links: bool = True
) -> Iterator[BinaryIO]:
    """Writes a file that is complete when it appears.

    After an error or a kill, an existing file is as before. If several processes write
    the same file, the file of the last one to finish stays. A file that replaces
    another one gets its permissions. `follow_links=False` replaces a symbolic link
    itself, not its target.
    """
    path = pathlib.Path(os.path.realpath(path) if follow_links else path)
    with _temporary_path(path) as aside:
        with open(aside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            shutil.copymode(path, aside)
        os.replace(aside, path)


@contextlib.contextmanager
def new_folder(
    filepath: str | os.PathLike, name: str = "filepath"
) -> Iterator[pathlib.Path]:
    """Writes a folder that is complete when it appears.

    A folder that replaces an empty one gets its permissions.
    """
    check_new_folder(filepath, name)
    target = pathlib.Path(os.path.realpath(filepath))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_path(target) as aside:
        yield aside
        if target.exists():
            shutil.copymode(target, aside)
        os.replace(aside, target)


@contextlib.contextmanager
def _temporary_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Creates a locked folder beside a path; yields a path of the same name in it."""
    prefix = f"{UNFINISHED}{path.name}-"
    if fcntl is not None:
        _remove_abandoned(path.parent, prefix)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix=prefix, dir=path.parent, ignore_cleanup_errors=True
            )
        )
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            lock(descriptor)
        yield pathlib.Path(folder, path.name)


def _remove_abandoned(parent: pathlib.Path, prefix: str) -> None:
    """Removes the temporary folders of processes that were killed.

    A process holds a lock on its folder. It takes the lock while the folder is empty,
    so empty folders stay.
    """
    for folder in parent.glob(f"{glob.escape(prefix)}????????"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.listdir(descriptor) and lock(descriptor, without_locks=False):
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def check_new_folder(filepath: str | os.PathLike, name: str = "filepath") -> None:
    """Checks that `new_folder` can write a folder."""
    target = pathlib.Path(os.path.realpath(filepath))
    if target == pathlib.Path.cwd():
        raise ValueError(
            f"`{name}` must not be the working folder; received "
            f"`{name}={str(filepath)!r}`. Choose a folder in it."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        found = "not empty" if target.is_dir() else "a file"
        raise FileExistsError(
            f"`{name}` must be a new or an empty folder; received "
            f"`{name}={str(target)!r}`, which is {found}. Choose the next version "
            "number, or remove it."
        )


def check_new_file(
    target: pathlib.Path, source: str | os.PathLike | None, overwrite: bool
) -> None:
    """Checks that a file that is made from another one can be written."""
    received = f"received `target={str(target)!r}`"
    if not target.parent.exists():
        raise FileNotFoundError(
            f"`target` must be in a folder that exists; {received}. Create the folder "
            "first."
        )
    if target.exists() and source is not None and os.path.samefile(source, target):
        raise ValueError(f"`target` must not be the file `source`; {received}.")
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"`target` must not exist; {received}. Choose another name, or replace the "
            "file with `overwrite=True`."
        )


def lock(file: BinaryIO | int, without_locks: bool = True) -> bool:
    """Locks a file or folder until it is closed or the process ends.

    The lock excludes other callers of this function only. The result is `True` if the
    file was not locked, and `without_locks` if the system has no locks (Windows).
    """
    if fcntl is None:
        return without_locks
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # The file system has no locks.
        return without_locks
    return True


def checked_file(path: pathlib.Path, argument: str = "folder") -> pathlib.Path:
    """Returns the path of a file; raises `FileNotFoundError` if it does not exist."""
    if not path.is_file():
        raise FileNotFoundError(
            f"`{argument}` must have the file {path.name}; there is none in "
            f"{path.parent}."
        )
    return path


def check_is_file(path: str | os.PathLike) -> None:
    """Checks that a path is not that of a pipe, which would wait, or of a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(
            f"{os.fspath(path)} must be a file; it is a folder, a pipe or a device."
        )


def read_file(path: str | os.PathLike) -> bytes:
    """Returns the content of a file, not of a pipe or a device."""
    check_is_file(path)
    return pathlib.Path(path).read_bytes()


def check_zip_members(archive: zipfile.ZipFile, most: int) -> None:
    """Checks the sizes of the members of a zip file before they are read.

    The headers may lie: `read` would unpack a whole member and then cut it. After this
    check, no member has more bytes than its header says. The output of methods other
    than deflate cannot be limited, so they are refused.
    """
    members = archive.infolist()
    expanded = sum(member.file_size for member in members)
    if expanded > most:
        raise ValueError(
            f"its members would have {expanded} bytes, more than the {most} that a "
            "file of its size can have"
        )
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"{member.filename!r:.80} is compressed by another method than deflate"
            )
        size = member.compress_size
        if member.compress_type == zipfile.ZIP_DEFLATED:
            longer = copy.copy(member)
            longer.file_size += 1
            with archive.open(longer) as file:
                size = sum(map(len, iter(lambda: file.read(1 << 20), b"")))
        if size != member.file_size:
            raise ValueError(
                f"{member.filename!r:.80} has another size than {member.file_size}, as "
                "its header says"
            )


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
    """Reads a JSON file whose content is a `kind`, `dict` or `list`."""
    text = read_file(path)
    try:
        content = json.loads(text.decode("utf-8"))
        # An escape such as \\ud800 is half of a character.
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file; it is not ({error}).") from error
    if not isinstance(content, kind):
        name = "object" if kind is dict else "list"
        raise ValueError(f"{path} must hold a JSON {name}; it holds {content!r:.80}.")
    return content


def read_toml(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a TOML file."""
    content = read_file(path)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}.") from error


def write_json(path: pathlib.Path, content: object, follow_links: bool = True) -> None:
    """Writes an indented JSON file; see `written_whole`."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    with written_whole(path, follow_links) as file:
        file.write(f"{text}\n".encode())
