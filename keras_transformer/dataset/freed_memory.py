"""Keeps freed memory in the process, which glibc would return to the system."""

import ctypes
import sys

# Parameters of glibc's `mallopt`, and the highest threshold that glibc sets itself.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAX_THRESHOLD = 32 * 2**20


def keep_freed_memory() -> None:
    """Lets the process reuse freed memory.

    The first generator of a TensorFlow dataset makes glibc map every block of 128 KiB
    or more again, for the whole process (because of a memory leak of Python 3.11). On
    PyTorch all tensors of a training step then start with page faults, and the step
    takes two to three times as long. This function sets the thresholds that glibc
    reaches by itself when such blocks are freed. Without glibc it does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MAX_THRESHOLD)
