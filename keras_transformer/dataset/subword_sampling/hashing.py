"""Random numbers that are functions of what they are for."""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Hashes integers, elementwise: uint64, as random as a generator's output.

    References:
        Steele et al., 2014, "Fast Splittable Pseudorandom Number Generators": the
        output function of SplitMix64.
    """
    value = np.zeros(1, np.uint64)
    for part in parts:
        value = (value + np.asarray(part).astype(np.uint64)) * _GOLDEN + _GOLDEN
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value = value ^ (value >> np.uint64(31))
    return value


def uniform(bits: np.ndarray) -> np.ndarray:
    """Uint64 hashes as numbers from 0 up to and without 1."""
    return (bits >> np.uint64(11)) * 2.0**-53
