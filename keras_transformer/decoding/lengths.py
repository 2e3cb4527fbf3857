"""Lengths of outputs, absolute or relative to the length of the source."""

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.types import SizeT


@dataclass(frozen=True)
class RelativeLength:
    """A length of `factor * source_length + extra` tokens, rounded down.

    Args:
        factor: float, at least 0.
        extra: float, number of tokens.

    Raises:
        ValueError: if `factor` is negative, or `factor` or `extra` is not finite.

    Example:

    ```python
    model.generate(texts, min_length=RelativeLength(0.5), max_length=RelativeLength(2))
    ```
    """

    factor: float
    extra: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.factor < math.inf and math.isfinite(self.extra)):
            raise ValueError(
                "`factor` must be a number of at least 0 and `extra` finite; received "
                f"`factor={self.factor}`, `extra={self.extra}`."
            )


OutputLength = int | RelativeLength

# Section 6.1 of Vaswani et al., 2017.
DEFAULT_MAX_LENGTH = RelativeLength(1.0, 50.0)


def output_lengths(length: OutputLength, source_lengths: SizeT) -> SizeT:
    """Returns output lengths for source lengths; a relative length gives 1 or more."""
    if isinstance(source_lengths, int):
        if not isinstance(length, RelativeLength):
            return operator.index(length)
        # In float32, as for a tensor.
        product = np.float32(source_lengths) * np.float32(length.factor)
        return max(1, math.floor(product + np.float32(length.extra)))
    if not isinstance(length, RelativeLength):
        return ops.zeros_like(source_lengths) + operator.index(length)
    lengths = ops.cast(source_lengths, "float32") * length.factor + length.extra
    return ops.maximum(ops.cast(ops.floor(lengths), "int32"), 1)


def default_lengths(source_lengths: SizeT, ratio: float, least: OutputLength) -> SizeT:
    """Returns default output lengths: `ratio` times the source, at least `least`."""
    lengths = output_lengths(least, source_lengths)
    if ratio <= 1:
        return lengths
    wanted = output_lengths(RelativeLength(ratio), source_lengths)
    if isinstance(lengths, int) and isinstance(wanted, int):
        return max(lengths, wanted)
    return ops.maximum(lengths, wanted)


def smaller(size: Any, limit: Any) -> Any:
    """Returns the smaller of two ints or int tensors, an int if both are ints."""
    are_ints = isinstance(size, int) and isinstance(limit, int)
    return min(size, limit) if are_ints else ops.minimum(size, limit)
