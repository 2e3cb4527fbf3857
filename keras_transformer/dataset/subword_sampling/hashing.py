"""Random numbers as hashes of integers, without the state of a generator."""

import numpy as np

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def hash_integers(*parts: int | np.ndarray) -> np.ndarray:
    """Hashes integers or arrays elementwise with the mixing function of SplitMix64.

    The result is uint64 and has at least one dimension.

    References:
        Steele et al., 2014, "Fast Splittable Pseudorandom Number Generators".
    """
    value = np.zeros(1, np.uint64)
    for part in parts:
        part = np.asarray(part).astype(np.uint64)
        value = (value + part) * _GOLDEN_GAMMA + _GOLDEN_GAMMA
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value = value ^ (value >> np.uint64(31))
    return value


def to_uniform(hashes: np.ndarray) -> np.ndarray:
    """Converts uint64 hashes to float64 numbers in [0, 1)."""
    return (hashes >> np.uint64(11)) * 2.0**-53
