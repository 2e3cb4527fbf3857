"""Keeps freed memory in the process, which glibc would return to the system."""

import ctypes
import sys

# Parameters of glibc's `mallopt`, whose values have the C type `int`.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_GIB = 2**30
_LARGEST_BEFORE_2_35 = 32 * 2**20


def keep_freed_memory() -> None:
    """Lets the process reuse freed memory.

    The first generator of a TensorFlow dataset makes glibc map every block of 128 KiB
    or more again, for the whole process (because of a memory leak of Python 3.11). On
    PyTorch all tensors of a training step then start with page faults, and the step
    takes two to three times as long. JAX allocates the memory of a step as one block,
    which glibc maps again by default if it has more than 32 MiB. This function lets
    glibc reuse blocks of up to 1 GiB, and 32 MiB before its version 2.35. Without glibc
    it does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_M_MMAP_THRESHOLD, _GIB):
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_BEFORE_2_35)
        mallopt(_M_TRIM_THRESHOLD, 2 * _GIB - 1)
