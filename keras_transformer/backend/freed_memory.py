"""Keeps freed memory in the process, which glibc would return to the system."""

import ctypes
import sys

# Parameters of glibc's `mallopt`, whose values have the C type `int`.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_GIB = 2**30
_LARGEST_BEFORE_2_35 = 32 * 2**20


def keep_freed_memory() -> None:
    """Lets the process reuse freed memory.

    The first generator of a TensorFlow dataset makes glibc map every block of 128 KiB
    or more again, for the whole process (because of a memory leak of Python 3.11). On
    PyTorch all tensors of a training step then start with page faults, and the step
    takes two to three times as long. JAX allocates the memory of a step as one block,
    which glibc maps again by default if it has more than 32 MiB. This function lets
    glibc reuse blocks of up to 1 GiB, or of 32 MiB before its version 2.35. Without
    glibc it does nothing.
    """
    if not _mallopt(_M_MMAP_THRESHOLD, _GIB):
        _mallopt(_M_MMAP_THRESHOLD, _LARGEST_BEFORE_2_35)
    _mallopt(_M_TRIM_THRESHOLD, 2 * _GIB - 1)


def use_one_arena() -> None:
    """Lets all threads that start from now on allocate in the main arena of glibc.

    JAX allocates the memory of a step on a CPU in a thread of its own. The arenas of
    such threads have at most 64 MiB, and glibc maps every larger block again. With one
    arena and `keep_freed_memory`, a training step takes 0.7 of the time. Call this
    function before libraries start threads. Without glibc it does nothing.
    """
    _mallopt(_M_ARENA_MAX, 1)


def _mallopt(parameter: int, value: int) -> bool:
    """Sets a parameter of glibc's `malloc`, and returns whether it was set."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
