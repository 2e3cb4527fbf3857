"""Stops glibc from returning freed memory to the system."""

import ctypes
import sys

# Parameters of glibc's mallopt, and the highest threshold that it sets by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_HIGHEST = 32 * 2**20


def keep_freed_memory() -> None:
    """Lets freed memory be reused instead of going back to the system.

    The first generator that TensorFlow makes a dataset of sets glibc, for the whole
    process, to map every block of 128 KiB or more afresh (against a leak of Python
    3.11). On PyTorch, all tensors of a training step then begin with page faults, and
    it takes two to three times as long. This sets the thresholds that glibc itself
    arrives at when such blocks are freed. Without glibc, it does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _HIGHEST)
        mallopt(_TRIM_THRESHOLD, 2 * _HIGHEST)
