"""Attention to the nearest positions, and to and from a few first ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_patterns import blocks
from keras_transformer.layers.attention_patterns.attention_pattern import (
    AttentionPattern,
    check_at_least,
    distances,
)


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
        check_at_least(0, radius=self.radius)
        check_at_least(1, global_tokens=self.global_tokens)

    def mask(self, query_positions: Any, key_positions: Any) -> Any:
        distance = ops.abs(distances(query_positions, key_positions))
        from_global = ops.expand_dims(self._are_global(query_positions), -1)
        to_global = ops.expand_dims(self._are_global(key_positions), -2)
        near = ops.less_equal(distance, self.radius)
        return ops.logical_or(near, ops.logical_or(from_global, to_global))

    def pays(self, length: int | None) -> bool:
        return length is None or blocks.pay(
            length, self.radius, keys_for_all=self.global_tokens
        )

    def attend(
        self,
        attend: Callable[..., Any],
        query: Any,
        key: Any,
        value: Any,
        key_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        key_mask = blocks.mask_of(key, key_mask)
        positions = blocks.positions_of(key)
        first, rest = slice(self.global_tokens), slice(self.global_tokens, None)
        from_first = attend(
            query[:, first], key, value, positions[:, first], positions, key_mask
        )
        cut = self._cut(query, key, value, positions, key_mask, use_causal_mask)
        from_rest = blocks.join(attend(*cut), query)[:, rest]
        return ops.concatenate([from_first, from_rest], axis=1)

    def _cut(
        self,
        query: Any,
        key: Any,
        value: Any,
        positions: Any,
        key_mask: Any,
        use_causal_mask: bool,
    ) -> blocks.Blocks:
        """Cuts the window; its global keys move to the front of every block."""
        not_global = ops.logical_not(self._are_global(positions))
        cut = blocks.cut(
            query,
            key,
            value,
            ops.logical_and(key_mask, not_global),
            use_causal_mask,
            self.radius,
        )
        rows = ops.shape(cut.key_positions)[0]

        def in_front(x: Any, windows: Any) -> Any:
            first = blocks.repeat(x[:, : self.global_tokens], rows)
            return ops.concatenate([first, windows], axis=1)

        return cut._replace(
            key=in_front(key, cut.key),
            value=in_front(value, cut.value),
            key_positions=in_front(positions, cut.key_positions),
            key_mask=in_front(key_mask, cut.key_mask),
        )

    def _are_global(self, positions: Any) -> Any:
        return ops.less(positions, self.global_tokens)
