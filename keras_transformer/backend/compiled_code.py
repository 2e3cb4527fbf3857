"""The code that XLA compiles, kept on the disk for later processes."""

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import tempfile
import time
import zlib

_DAYS = 30
# TensorFlow's code: a command reads and checks all of it when it starts.
_GREATEST_BYTES = 256 * 2**20
_LEAST_FREE_BYTES = 256 * 2**20
_KEPT = re.compile(r"([0-9a-f]{8})-(.+[.]pb)")


def keep_compiled_code() -> None:
    """Lets TensorFlow and JAX keep the code that XLA compiles, for this user.

    It must be called before their import. A folder in the environment variables
    `TF_XLA_FLAGS` and `JAX_COMPILATION_CACHE_DIR` takes precedence. Has no effect if
    the user cannot write to the folder.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = user_cache("jaxlib")
        if folder is not None:
            os.environ["JAX_COMPILATION_CACHE_DIR"] = os.fspath(folder)
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if "tf_xla_persistent_cache_directory" not in flags:
        folder = user_cache("tensorflow", "tensorflow-cpu")
        own = None if folder is None else _own_folder(folder)
        if own is not None:
            os.environ["TF_XLA_FLAGS"] = f"{flags} {tensorflow_flags(own)}".strip()


def tensorflow_flags(folder: str | os.PathLike[str]) -> str:
    """Returns the value of `TF_XLA_FLAGS` for a folder of compiled code.

    TensorFlow raises an error if a file in it is damaged, or the disk is full.

    Args:
        folder: path of an existing folder.
    """
    return (
        f"--tf_xla_persistent_cache_directory='{folder}' "  # may contain spaces
        "--tf_xla_persistent_cache_device_types=CPU"
    )


def _own_folder(folder: pathlib.Path) -> pathlib.Path | None:
    """Creates a folder for this process, with the files whose checksums are right.

    At the end of the process, its new files are added to `folder`, and its own folder
    is removed. A damaged file is removed, and nothing is kept on a disk that is almost
    full, so neither stops a later process.
    """
    try:
        if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
            return None
        own = pathlib.Path(tempfile.mkdtemp(dir=folder))
    except OSError:
        return None
    files = [(_written(file), file) for file in folder.glob("*.pb")]
    total = 0
    for _, file in sorted(files, reverse=True):
        with contextlib.suppress(OSError):  # another process may remove it
            content = file.read_bytes()
            total += len(content)
            name = _KEPT.fullmatch(file.name)
            if name and name[1] == _checksum(content) and total < _GREATEST_BYTES:
                os.link(file, own / name[2])
            else:
                file.unlink()
    atexit.register(_add_new_files, folder, own, os.getpid())
    return own


def _add_new_files(folder: pathlib.Path, own: pathlib.Path, process: int) -> None:
    if process != os.getpid():  # a child process
        return
    for file in own.glob("*.pb"):
        with contextlib.suppress(OSError):
            if file.stat().st_nlink == 1:  # Files of `folder` have two links.
                checksum = _checksum(file.read_bytes())
                os.replace(file, folder / f"{checksum}-{file.name}")
    shutil.rmtree(own, ignore_errors=True)


def _checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def _written(file: pathlib.Path) -> float:
    """Returns when a file was written, or 0 if another process has removed it."""
    with contextlib.suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def user_cache(*packages: str) -> pathlib.Path | None:
    """Returns the folder of this user for compiled code, and removes old files.

    The folder is inside `$XDG_CACHE_HOME` or `~/.cache`. Its name depends on the
    versions of packages and on the instructions of the processor, because code that is
    compiled for one processor may fail on another. Files of any version are removed 30
    days after they were written.

    Args:
        *packages: names of the packages that compile the code.

    Returns:
        The path, or `None` if the user cannot write there.
    """
    try:
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        caches = pathlib.Path(home, "keras_transformer")
        folder = caches / f"compiled-{_machine(packages)}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK) or folder.stat().st_uid != os.getuid():
            return None
    except (OSError, RuntimeError):  # no home
        return None
    oldest = time.time() - _DAYS * 24 * 3600
    for file in caches.glob("compiled-*/*"):
        with contextlib.suppress(OSError):  # another process may remove it
            if file.stat().st_mtime >= oldest:
                continue
            if file.is_dir():  # of a process that was killed
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink()
    return folder


def _machine(packages: tuple[str, ...]) -> str:
    """Returns a digest of what compiled code depends on."""
    versions = [f"{package} {_version(package)}" for package in packages]
    text = " ".join([*versions, platform.machine(), _processor()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    """Returns the names of the instructions of the processor, as far as known."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()
