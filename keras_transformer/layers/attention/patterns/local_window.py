"""Attention pattern: the nearest positions."""

from dataclasses import dataclass

import keras
from keras import ops

from keras_transformer.layers.attention.patterns.blockwise import (
    BlockwisePattern,
    Window,
)
from keras_transformer.layers.positions.scheme import relative_positions
from keras_transformer.types import Mask, Tensor
from keras_transformer_runtime.arguments import check_ints


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class LocalWindow(BlockwisePattern):
    """Each position attends to the positions at most `radius` away.

    `i` attends to `j` if `|i - j| <= radius`: to `2 * radius + 1` positions, or
    `radius + 1` with a causal mask.

    Args:
        radius: int >= 0, number of positions attended to on either side.

    Raises:
        ValueError: if `radius` is out of range.

    Example:

    >>> positions = np.arange(5)
    >>> mask = LocalWindow(radius=1).mask(positions, positions)
    >>> ops.convert_to_numpy(mask).astype(int)
    array([[1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 0, 1, 1]])

    References:
        - [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 3.1,
          "Sliding Window"
    """

    radius: int

    def __post_init__(self) -> None:
        check_ints(0, radius=self.radius)

    def mask(self, query_positions: Tensor, key_positions: Tensor) -> Mask:
        distance = ops.abs(relative_positions(query_positions, key_positions))
        return ops.less_equal(distance, self.radius)

    @property
    def window(self) -> Window:
        return Window(self.radius)
