"""Attention inside and near a pattern, block by block."""

from collections.abc import Callable

from keras import ops

from keras_transformer.layers.attention.mask_and_bias import mask_and_bias
from keras_transformer.layers.attention.patterns import AttentionPattern
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    AttentionResult,
    scaled_dot_product_attention,
)
from keras_transformer.layers.masking import (
    attention_mask_from_padding,
    with_head_axis,
)
from keras_transformer.layers.positions.scheme import PositionScheme
from keras_transformer.types import Mask, Size, Tensor


def is_blockwise_faster(
    pattern: AttentionPattern, length: Size | None, mask: Mask | None
) -> bool:
    """Returns whether `blockwise_attention` takes the mask and saves time."""
    if mask is not None:
        mask = with_head_axis(mask)
        if not mask.shape[1] == mask.shape[2] == 1:  # other keys for other queries
            return False
    # JAX may represent the length by a symbol that does not compare with numbers.
    return (length is None or isinstance(length, int)) and pattern.is_worthwhile(length)


def blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,  # of one row for all queries
    pattern: AttentionPattern,
    scheme: PositionScheme | None,
    use_causal_mask: bool,
    dropout: Callable[[Tensor], Tensor] | None,
    flash_attention: bool | None,
) -> Tensor:
    """Computes attention inside and near a pattern only, for positions 0, 1, 2, …."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        key_mask: Mask | None,
    ) -> AttentionResult:
        block_mask, bias, _ = mask_and_bias(
            query,
            key,
            query_positions,
            key_positions,
            attention_mask_from_padding(key_mask),
            pattern,
            scheme,
            use_causal_mask,
        )
        return scaled_dot_product_attention(
            query,
            key,
            value,
            block_mask,
            bias=bias,
            dropout=dropout,
            flash_attention=flash_attention,
        )

    key_mask = None
    if mask is not None:
        key_mask = with_head_axis(mask)[:, 0, 0]
        key_mask = ops.broadcast_to(key_mask, ops.shape(key)[:2])
    return pattern.attend(attend, query, key, value, key_mask, use_causal_mask)
