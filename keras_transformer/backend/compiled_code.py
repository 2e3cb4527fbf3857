"""The code that JAX compiles, kept on the disk for later processes.

TensorFlow has such a cache too, but raises an error if the disk is full or a file is
damaged.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import time

_DAYS = 30


def keep_compiled_code() -> None:
    """Lets JAX keep the code that it compiles in a folder of this user.

    It must be called before the import of JAX. The environment variable
    `JAX_COMPILATION_CACHE_DIR` takes precedence. Has no effect if the user cannot write
    to the folder.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = user_cache()
        if folder is not None:
            os.environ["JAX_COMPILATION_CACHE_DIR"] = os.fspath(folder)


def user_cache() -> pathlib.Path | None:
    """Returns the folder of this user for compiled code, and removes old files.

    The folder is inside `$XDG_CACHE_HOME` or `~/.cache`. Its name depends on the
    version of JAX and on the instructions of the processor, because code that is
    compiled for one processor may fail on another. Files of any version are removed 30
    days after they were written.

    Returns:
        The path, or `None` if the user cannot write there.
    """
    try:
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        caches = pathlib.Path(home, "keras_transformer")
        folder = caches / f"compiled-{_machine()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK) or folder.stat().st_uid != os.getuid():
            return None
    except (OSError, RuntimeError):  # no home
        return None
    oldest = time.time() - _DAYS * 24 * 3600
    for file in caches.glob("compiled-*/*"):
        with contextlib.suppress(OSError):  # another process may remove it
            if file.stat().st_mtime < oldest:
                file.unlink()
    return folder


def _machine() -> str:
    """Returns a digest of what compiled code depends on."""
    text = " ".join([_version("jaxlib"), platform.machine(), _processor()])
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
