"""Atomic writes of files and folders, locks, and JSON files."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None  # type: ignore[assignment]

# Prefixes of unfinished files and folders. 16 random hexadecimal digits follow, and in
# the name of a file its final name.
UNFINISHED = ".unfinished-"
UNFINISHED_FOLDER = ".export-"
_RANDOM = "[0-9a-f]{16}"


@contextlib.contextmanager
def written_whole(
    path: str | os.PathLike, follow_links: bool = True
) -> Iterator[BinaryIO]:
    """Writes a file atomically, under a temporary name until it is complete.

    If an exception is raised, an existing file stays as it is. If several processes
    write the same file, the file of the last one to finish stays. The temporary name
    is random, and no link of this name is followed. A file that replaces another one
    gets its permissions. The unfinished file of a killed process is removed when the
    file is written again, if the file system has locks.

    Args:
        path: path of the file; an existing file is replaced.
        follow_links: if the path is a symbolic link, whether its target is replaced
            and the link stays. `False` replaces the link.

    Yields:
        The open file, which has a temporary name.
    """
    path = pathlib.Path(os.path.realpath(path) if follow_links else path)
    pattern = f"{re.escape(UNFINISHED)}{_RANDOM}-{re.escape(path.name)}"
    _remove_abandoned(path.parent, pattern)
    old = _regular_file(path)
    file = _new_file(path, 0o666 if old is None else 0o600)
    aside = pathlib.Path(file.name)
    try:
        yield file
        file.flush()
        if old is not None:
            _copy_permissions(old, file)
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows does not rename an open file.
        os.replace(aside, path)
    finally:
        with contextlib.suppress(OSError):  # The disk is full.
            file.close()
        aside.unlink(missing_ok=True)


def _regular_file(path: pathlib.Path) -> os.stat_result | None:
    """Returns the properties of a regular file; `None` if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _new_file(path: pathlib.Path, mode: int) -> BinaryIO:
    """Creates a locked file with a random name next to `path`."""

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    while True:
        name = f"{UNFINISHED}{secrets.token_hex(8)}-{path.name}"
        aside = path.with_name(name)
        file = cast(BinaryIO, open(aside, "xb", opener=create))  # noqa: SIM115
        lock(file)
        if _is_at(file.fileno(), aside):
            return file
        file.close()  # Another process took it for abandoned, and removed it.


def _copy_permissions(old: os.stat_result, file: BinaryIO) -> None:
    """Gives a file the permissions of another one, or narrower ones."""
    if not hasattr(os, "fchmod"):  # On Windows.
        return
    mode = stat.S_IMODE(old.st_mode) & 0o777
    if os.fstat(file.fileno()).st_gid != old.st_gid:
        try:
            os.fchown(file.fileno(), -1, old.st_gid)
        except OSError:  # The permissions of its group are not for another group.
            mode &= ~0o070
    os.fchmod(file.fileno(), mode)


def _is_at(descriptor: int, path: str | os.PathLike) -> bool:
    """Returns whether the path is still that of an open file or folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: pathlib.Path, pattern: str) -> None:
    """Removes the unfinished files and folders of processes that were killed.

    Their processes hold a lock on those that are being written. Files of other users
    stay.

    Args:
        folder: folder with the files; it need not exist.
        pattern: regular expression of their names.
    """
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if re.fullmatch(pattern, entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    is_folder = entry.is_dir(follow_symlinks=False)
    if not (is_folder or entry.is_file(follow_symlinks=False)):
        return
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _try_lock(descriptor):
            (shutil.rmtree if is_folder else os.unlink)(entry.path)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(
    filepath: str | os.PathLike, name: str = "filepath"
) -> Iterator[pathlib.Path]:
    """Writes a folder atomically, under a temporary name until it is complete.

    If an exception is raised, the folder and the parent folders created for it are
    removed. The unfinished folder of a killed process is removed by the next call for
    the same parent folder, if the file system has locks. A folder that replaces an
    empty one gets its permissions.

    Args:
        filepath: path of the folder; it must be new or empty.
        name: name of the argument, for the error message.

    Yields:
        The temporary path of the folder, which does not exist yet.

    Raises:
        FileExistsError: if `filepath` exists and is not an empty folder.
        ValueError: if `filepath` is a mount point or the working folder.
    """
    check_new_folder(filepath, name)
    target = pathlib.Path(os.path.realpath(filepath))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent, re.escape(UNFINISHED_FOLDER) + _RANDOM)
    try:
        with _temporary_folder(target.parent) as folder:
            written = folder / "written"
            yield written
            if mode is not None:
                written.chmod(mode)
            os.replace(written, target)
    except BaseException:
        with contextlib.suppress(OSError):  # Other processes may use the folders.
            for parent in made:
                parent.rmdir()
        raise


def check_new_folder(filepath: str | os.PathLike, name: str = "filepath") -> None:
    """Checks that `new_folder` can write a folder.

    Args:
        filepath: path of the folder; it must be new or empty.
        name: name of the argument, for the error message.

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
        found = "not empty" if target.is_dir() else "a file"
        raise FileExistsError(
            f"`{name}` must be a new or an empty folder; received "
            f"`{name}={str(target)!r}`, which is {found}. Choose the next version "
            "number, or remove it."
        )


def check_new_file(
    target: pathlib.Path, source: str | os.PathLike | None, overwrite: bool
) -> None:
    """Checks that a file that is made from another one can be written.

    Args:
        target: path of the new file.
        source: path of the other file, or `None`.
        overwrite: whether an existing file may be replaced.

    Raises:
        ValueError: if both are the same file.
        FileNotFoundError: if the folder of `target` does not exist.
        FileExistsError: if `target` exists and may not be replaced.
    """
    if not target.parent.exists():
        raise FileNotFoundError(
            "`target` must be in a folder that exists; received "
            f"`target={str(target)!r}`. Create the folder first."
        )
    if target.exists() and source is not None and os.path.samefile(source, target):
        raise ValueError(
            "`target` must not be the file `source`; received "
            f"`target={str(target)!r}`."
        )
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"`target` must not exist; received `target={str(target)!r}`. Choose "
            "another name, or replace the file with `overwrite=True`."
        )


@contextlib.contextmanager
def _temporary_folder(parent: pathlib.Path) -> Iterator[pathlib.Path]:
    """Creates a locked folder with a random name, and removes it at the end."""
    descriptor = None
    while True:
        folder = parent / f"{UNFINISHED_FOLDER}{secrets.token_hex(8)}"
        folder.mkdir(0o700)
        if fcntl is None:
            break
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # See below.
            continue
        _try_lock(descriptor)
        if _is_at(descriptor, folder):
            break
        os.close(descriptor)  # Another process took it for abandoned, and removed it.
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


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


def check_is_file(path: str | os.PathLike) -> None:
    """Checks that a path is not that of a folder, a pipe or a device.

    Opening a pipe would wait for another process.

    Args:
        path: path of the file; a link is followed.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not a regular file.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(
            f"{os.fspath(path)} must be a file; it is a folder, a pipe or a device."
        )


def read_file(path: str | os.PathLike) -> bytes:
    """Reads a file; see `check_is_file`.

    Args:
        path: path of the file.

    Returns:
        The content.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a regular file.
    """
    check_is_file(path)
    return pathlib.Path(path).read_bytes()


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
    text = read_file(path)
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file; it is not ({error}).") from error
    if not isinstance(content, kind):
        name = "object" if kind is dict else "list"
        raise ValueError(f"{path} must hold a JSON {name}; it holds {content!r:.80}.")
    return content


def write_json(path: pathlib.Path, content: Any, follow_links: bool = True) -> None:
    """Writes an indented JSON file atomically.

    Args:
        path: path of the file.
        content: dictionary or list.
        follow_links: see `written_whole`.
    """
    text = json.dumps(content, ensure_ascii=False, indent=2)
    with written_whole(path, follow_links) as file:
        file.write(f"{text}\n".encode())


def lock(file: BinaryIO) -> bool:
    """Locks a file until it is closed or the process ends.

    The lock excludes other callers of this function only.

    Args:
        file: an open file.

    Returns:
        `True` if the file was not locked, or if the system has no locks, such as
        Windows.
    """
    return _try_lock(file.fileno()) is not False


def _try_lock(descriptor: int) -> bool | None:
    """Locks an open file or folder; `False` if it is locked, `None` without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # The file system has no locks.
        return None
    return True
