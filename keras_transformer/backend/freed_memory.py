"""Keeps freed memory in the process, which glibc would return to the system."""

import ctypes
import sys

# Parameters of glibc's `mallopt`, whose values have the C type `int`.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_GIB = 2**30
_LARGEST_BEFORE_2_35 = 32 * 2**20


def keep_freed_memory() -> None:
    """Lets glibc reuse freed memory, in blocks of up to 1 GiB (32 MiB before 2.35).

    The first generator of a TensorFlow dataset makes glibc map every block of 128 KiB
    or more again, for the whole process (because of a memory leak of Python 3.11), and
    by default glibc maps the block of a JAX step again if it has more than 32 MiB. The
    page faults make a training step on PyTorch take two to three times as long.
    """
    if not _mallopt(_M_MMAP_THRESHOLD, _GIB):
        _mallopt(_M_MMAP_THRESHOLD, _LARGEST_BEFORE_2_35)
    _mallopt(_M_TRIM_THRESHOLD, 2 * _GIB - 1)


def use_one_arena() -> None:
    """Lets all threads that start from now on allocate in the main arena of glibc.

    The arena of the thread in which JAX allocates a step on a CPU has at most 64 MiB,
    and glibc maps every larger block again. With one arena and `keep_freed_memory`, a
    training step takes 0.7 of the time. Call this function before libraries start
    threads.
    """
    _mallopt(_M_ARENA_MAX, 1)


def _mallopt(parameter: int, value: int) -> bool:
    """Sets a parameter of glibc's `malloc`, and returns whether it was set."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
