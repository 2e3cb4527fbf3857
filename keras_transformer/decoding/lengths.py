"""How long an output may be, or has to be, by the length of its source."""

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops


@dataclass(frozen=True)
class RelativeLength:
    """`factor * source_length + extra` tokens, rounded down.

    Args:
        factor: float of at least 0.
        extra: float.

    Raises:
        ValueError: if `factor` is negative or a number is not finite.

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
                "`factor` must be at least 0, and it and `extra` finite; received "
                f"`factor={self.factor}`, `extra={self.extra}`."
            )


# Section 6.1 of Vaswani et al., 2017.
DEFAULT_MAX_LENGTH = RelativeLength(1.0, 50.0)


def lengths_of(length: int | RelativeLength, source_lengths: Any) -> Any:
    """Resolves a length.

    Args:
        length: int or `RelativeLength`.
        source_lengths: int or int32 tensor of any shape.

    Returns:
        An int for an int, an int32 tensor for a tensor of its shape, at least 1.
    """
    if isinstance(source_lengths, int):
        if not isinstance(length, RelativeLength):
            return operator.index(length)
        own = np.float32(source_lengths) * np.float32(length.factor)  # as for a tensor
        return max(1, math.floor(own + np.float32(length.extra)))
    if not isinstance(length, RelativeLength):
        return ops.zeros_like(source_lengths) + operator.index(length)
    lengths = ops.cast(source_lengths, "float32") * length.factor + length.extra
    return ops.maximum(ops.cast(ops.floor(lengths), "int32"), 1)
