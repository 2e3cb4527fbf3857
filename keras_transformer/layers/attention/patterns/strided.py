"""Attention pattern: a dilated window."""

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
class Strided(BlockwisePattern):
    """Each position attends to every `stride`-th position at most `radius` away.

    `i` attends to `j` if `|i - j| <= radius` and `stride` divides `i - j`. The window
    is as wide as that of `LocalWindow(radius)`, with one `stride`-th of the scores.

    Args:
        stride: int >= 1, distance of consecutive positions attended to.
        radius: int >= 0, maximum distance of a position attended to.

    Raises:
        ValueError: if `stride` or `radius` is out of range.

    Example:

    >>> positions = np.arange(6)
    >>> mask = Strided(stride=2, radius=3).mask(positions, positions)
    >>> ops.convert_to_numpy(mask).astype(int)
    array([[1, 0, 1, 0, 0, 0],
           [0, 1, 0, 1, 0, 0],
           [1, 0, 1, 0, 1, 0],
           [0, 1, 0, 1, 0, 1],
           [0, 0, 1, 0, 1, 0],
           [0, 0, 0, 1, 0, 1]])

    References:
        - [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 3.1,
          "Dilated Sliding Window"
    """

    stride: int
    radius: int

    def __post_init__(self) -> None:
        check_ints(1, stride=self.stride)
        check_ints(0, radius=self.radius)

    def mask(self, query_positions: Tensor, key_positions: Tensor) -> Mask:
        distance = ops.abs(relative_positions(query_positions, key_positions))
        in_step = ops.equal(ops.mod(distance, self.stride), 0)
        return ops.logical_and(in_step, ops.less_equal(distance, self.radius))

    @property
    def window(self) -> Window:
        return Window(self.radius // self.stride, self.stride)
