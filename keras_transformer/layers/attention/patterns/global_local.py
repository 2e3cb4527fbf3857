"""Attention to the nearest positions, and to and from a few first ones."""

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
class GlobalLocal(AttentionPattern):
    """A local window, and first positions that attend, and are attended to, everywhere.

    `i` attends to `j` where `|i - j| <= radius` or one of the two is less than
    `global_tokens`. A causal mask holds for global positions too: they see no
    later ones, and are seen by all later ones.

    Args:
        radius: int >= 0, positions seen on either side; 0 = itself alone.
        global_tokens: int >= 1, how many of the first positions are global.

    Raises:
        ValueError: if `radius` or `global_tokens` is out of range.

    Example:

    >>> positions = np.arange(5)
    >>> mask = GlobalLocal(radius=1, global_tokens=1).mask(positions, positions)
    >>> ops.convert_to_numpy(mask).astype(int)
    array([[1, 1, 1, 1, 1],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 0, 1, 1, 1],
           [1, 0, 0, 1, 1]])

    References:
        - [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 3.1,
          "Global Attention", with the same projections for both
    """

    radius: int
    global_tokens: int

    def __post_init__(self) -> None:
        check_ints(0, radius=self.radius)
        check_ints(1, global_tokens=self.global_tokens)

    def mask(self, query_positions: Any, key_positions: Any) -> Any:
        distance = ops.abs(relative_positions(query_positions, key_positions))
        from_global = ops.less(query_positions, self.global_tokens)[..., :, None]
        to_global = ops.less(key_positions, self.global_tokens)[..., None, :]
        near = ops.less_equal(distance, self.radius)
        return ops.logical_or(near, ops.logical_or(from_global, to_global))

    def pays(self, length: int | None) -> bool:
        return blocks.pay(length, self.radius, num_first=self.global_tokens)

    def attend(
        self,
        attend: Callable[..., Any],
        query: Any,
        key: Any,
        value: Any,
        key_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        first, rest = slice(self.global_tokens), slice(self.global_tokens, None)
        positions = blocks.positions_of(query)
        from_first = attend(
            query[:, first], key, value, positions[:, first], positions, key_mask
        )
        cut = blocks.cut(
            query,
            key,
            value,
            key_mask,
            use_causal_mask,
            self.radius,
            num_first=self.global_tokens,
        )
        from_rest = blocks.join(attend(*cut), query)[:, rest]
        return ops.concatenate([from_first, from_rest], axis=1)
