"""Attention pattern: a local window and global first positions."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import ops

from keras_transformer.layers.attention.patterns.blockwise import (
    BlockwisePattern,
    Window,
    block_positions,
)
from keras_transformer.layers.positions.scheme import relative_positions
from keras_transformer.types import Mask, Tensor
from keras_transformer_runtime.arguments import check_ints


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class GlobalLocal(BlockwisePattern):
    """A local window, and global first positions that attend to all and vice versa.

    `i` attends to `j` if `|i - j| <= radius`, `i < global_tokens` or
    `j < global_tokens`. A causal mask applies to global positions too: they do not
    attend to later positions, and all later positions attend to them.

    Args:
        radius: int >= 0, number of positions attended to on either side.
        global_tokens: int >= 1, number of first positions that are global.

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
          "Global Attention", with the same projections for local and global
          attention
    """

    radius: int
    global_tokens: int

    def __post_init__(self) -> None:
        check_ints(0, radius=self.radius)
        check_ints(1, global_tokens=self.global_tokens)

    def mask(self, query_positions: Tensor, key_positions: Tensor) -> Mask:
        distance = ops.abs(relative_positions(query_positions, key_positions))
        from_global = ops.less(query_positions, self.global_tokens)[..., :, None]
        to_global = ops.less(key_positions, self.global_tokens)[..., None, :]
        near = ops.less_equal(distance, self.radius)
        return ops.logical_or(near, ops.logical_or(from_global, to_global))

    @property
    def window(self) -> Window:
        return Window(self.radius, num_first=self.global_tokens)

    def attend(
        self,
        attend: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Mask | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor:
        first, rest = slice(self.global_tokens), slice(self.global_tokens, None)
        positions = block_positions(query)
        from_first = attend(
            query[:, first], key, value, positions[:, first], positions, key_mask
        )
        outputs = super().attend(attend, query, key, value, key_mask, use_causal_mask)
        return ops.concatenate([from_first, outputs[:, rest]], axis=1)
