"""Attention to every so many of the nearest positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.layers.attention.patterns import blocks
from keras_transformer.layers.attention.patterns.attention_pattern import (
    AttentionPattern,
)
from keras_transformer.layers.positions.scheme import relative_positions


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class Strided(AttentionPattern):
    """Every position attends to every `stride`-th one at most `radius` away.

    `i` attends to `j` where `|i - j| <= radius` and `stride` divides `i - j`: a
    dilated window, with the reach of `LocalWindow(radius)` for a `stride`-th of
    the scores.

    Args:
        stride: int >= 1, distance from one position seen to the next.
        radius: int >= 0, how far away the last of them may be.

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

    def mask(self, query_positions: Any, key_positions: Any) -> Any:
        distance = ops.abs(relative_positions(query_positions, key_positions))
        in_step = ops.equal(ops.mod(distance, self.stride), 0)
        return ops.logical_and(in_step, ops.less_equal(distance, self.radius))

    def pays(self, length: int | None) -> bool:
        return blocks.pay(length, self._steps, self.stride)

    def attend(
        self,
        attend: Callable[..., Any],
        query: Any,
        key: Any,
        value: Any,
        key_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        cut = blocks.cut(
            query, key, value, key_mask, use_causal_mask, self._steps, self.stride
        )
        return blocks.join(attend(*cut), query, self.stride)

    @property
    def _steps(self) -> int:
        """The radius among the positions with the same remainder."""
        return self.radius // self.stride
