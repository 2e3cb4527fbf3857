"""Positions as angles, which turn at a different rate in every dimension."""

from typing import Any

import numpy as np
from keras import ops


def position_angles(positions: Any, dim: int, max_wavelength: float) -> Any:
    """Computes `position / max_wavelength^(2i / dim)`, for every pair `i`.

    Args:
        positions: int tensor `(length,)` or `(batch, length)`.
        dim: int, number of dimensions; two of them share an angle.
        max_wavelength: float, the longest wavelength divided by 2π.

    Returns:
        float32 tensor `(length, pairs)` or `(batch, length, pairs)`, in
        radians, with `pairs = ⌈dim / 2⌉`. Positions are not exact in half
        precision, angles much less so.

    Example:

    >>> angles = position_angles(np.array([0, 5]), dim=4, max_wavelength=100)
    >>> ops.convert_to_numpy(angles).tolist()
    [[0.0, 0.0], [5.0, 0.5]]
    """
    frequencies = np.power(float(max_wavelength), -np.arange(0, dim, 2) / dim)
    rates = ops.convert_to_tensor(frequencies, dtype="float32")
    return ops.cast(positions, "float32")[..., None] * rates
