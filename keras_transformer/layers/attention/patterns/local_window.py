"""Attention to the nearest positions."""

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
class LocalWindow(AttentionPattern):
    """Every position attends to those at most `radius` away.

    `i` attends to `j` where `|i - j| <= radius`: to `2 * radius + 1` positions,
    under a causal mask to `radius + 1`.

    Args:
        radius: int >= 0, positions seen on either side; 0 = itself alone.

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

    def mask(self, query_positions: Any, key_positions: Any) -> Any:
        distance = ops.abs(relative_positions(query_positions, key_positions))
        return ops.less_equal(distance, self.radius)

    def pays(self, length: int | None) -> bool:
        return blocks.pay(length, self.radius)

    def attend(
        self,
        attend: Callable[..., Any],
        query: Any,
        key: Any,
        value: Any,
        key_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        cut = blocks.cut(query, key, value, key_mask, use_causal_mask, self.radius)
        return blocks.join(attend(*cut), query)
