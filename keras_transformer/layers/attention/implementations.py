"""Implementations of attention with patterns and positions: dense or blockwise."""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_transformer.layers.attention.patterns import AttentionPattern
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    AttentionResult,
    scaled_dot_product_attention,
)
from keras_transformer.layers.masking import (
    attention_mask_from_padding,
    merge_masks,
    with_head_axis,
)
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    relative_positions,
    sequence_positions,
)
from keras_transformer.types import Mask, Size, Tensor


class _Options(NamedTuple):
    """Options that both implementations share (see `attend`)."""

    pattern: AttentionPattern | None
    positions: PositionScheme | None
    use_causal_mask: bool
    dropout: Callable[[Tensor], Tensor] | None
    flash_attention: bool | None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | None = None,
    *,
    pattern: AttentionPattern | None = None,
    positions: PositionScheme | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    use_causal_mask: bool = False,
    return_attention_scores: bool = False,
    is_self_attention: bool = True,
    dropout: Callable[[Tensor], Tensor] | None = None,
    flash_attention: bool | None = None,
) -> AttentionResult:
    """Computes attention with the faster of two implementations.

    The dense implementation computes all scores and masks those outside the pattern.
    The blockwise implementation computes the scores inside and near the pattern only.
    It is used if it is worthwhile for the pattern and the length, the positions are
    0, 1, 2, …, the mask is the same for every query, and scores are not requested.
    The outputs are equal.

    Args:
        query: float tensor `(batch, query_length, num_heads, key_dim)`.
        key: float tensor `(batch, key_length, num_key_value_heads, key_dim)`.
        value: float tensor `(batch, key_length, num_key_value_heads, value_dim)`.
        attention_mask: boolean tensor `(batch, query_length, key_length)` or
            `(batch, num_heads, query_length, key_length)`. The sizes of its axes may
            be 1.
        pattern: attention pattern, or `None` for attention to all positions.
        positions: scheme whose bias is added to the logits, or `None`.
        query_positions: int tensor `(query_length,)` or `(rows, query_length)`.
            `rows` divides the batch size, and the positions repeat along the batch.
            Defaults to 0, 1, 2, ….
        key_positions: int tensor `(key_length,)` or `(rows, key_length)`.
        use_causal_mask: bool, whether a query attends only to keys up to its own
            position.
        return_attention_scores: bool, whether to return the scores too.
        is_self_attention: bool, whether queries and keys belong to the same tokens.
        dropout: function that is applied to the scores before the weighted sum.
        flash_attention: as in `keras.ops.dot_product_attention`.

    Returns:
        The results of `scaled_dot_product_attention`.
    """
    options = _Options(pattern, positions, use_causal_mask, dropout, flash_attention)
    if (
        pattern is not None
        and query_positions is None
        and key_positions is None
        and is_self_attention
        and not return_attention_scores
        and _is_equal_for_all_queries(attention_mask)
        and _is_blockwise_worthwhile(pattern, query.shape[1])
    ):
        return _blockwise_attention(query, key, value, attention_mask, pattern, options)
    return _dense_attention(
        query,
        key,
        value,
        query_positions,
        key_positions,
        attention_mask,
        options,
        return_attention_scores,
    )


def are_same_tokens(query: Tensor, key: Tensor) -> bool:
    """Returns whether queries and keys may belong to the same tokens."""
    if None in (query.shape[1], key.shape[1]):
        return query is key
    return query.shape[1] == key.shape[1]


def _blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | None,
    pattern: AttentionPattern,
    options: _Options,
) -> Tensor:
    def attend_block(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        key_mask: Mask | None,
    ) -> AttentionResult:
        mask = attention_mask_from_padding(key_mask)
        return _dense_attention(
            query, key, value, query_positions, key_positions, mask, options
        )

    key_mask = _as_key_mask(attention_mask, key)
    return pattern.attend(
        attend_block, query, key, value, key_mask, options.use_causal_mask
    )


def _dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    mask: Mask | None,
    options: _Options,
    return_attention_scores: bool = False,
) -> AttentionResult:
    is_in_order = query_positions is None and key_positions is None
    if query_positions is None:
        query_positions = sequence_positions(query)
    if key_positions is None:
        key_positions = sequence_positions(key)
    batch = ops.shape(query)[0]
    masks = [with_head_axis(mask)]
    if options.pattern is not None:
        pattern_mask = options.pattern.mask(query_positions, key_positions)
        masks.append(_repeat_rows(with_head_axis(pattern_mask), batch))
    if options.use_causal_mask and not is_in_order:
        past = ops.less_equal(relative_positions(query_positions, key_positions), 0)
        masks.append(_repeat_rows(with_head_axis(past), batch))
    bias = None
    if options.positions is not None:
        bias = options.positions.bias(query_positions, key_positions)
    if bias is not None:
        bias = bias if len(bias.shape) == 4 else ops.expand_dims(bias, 0)
        bias = _repeat_rows(bias, batch)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attention_mask=merge_masks(*masks),
        return_attention_scores=return_attention_scores,
        dropout=options.dropout,
        flash_attention=options.flash_attention,
        bias=bias,
        use_causal_mask=options.use_causal_mask and is_in_order,
    )


def _repeat_rows(x: Tensor, batch: Size) -> Tensor:
    """Repeats `(rows, …)` to `(batch, …)`. A single row is broadcast later."""
    if x.shape[0] == 1:
        return x
    rows, *dims = ops.shape(x)
    x = ops.broadcast_to(ops.expand_dims(x, 0), (batch // rows, rows, *dims))
    return ops.reshape(x, (batch, *dims))


def _is_blockwise_worthwhile(pattern: AttentionPattern, length: Size | None) -> bool:
    # JAX may represent the length by a symbol that does not compare with numbers.
    if length is not None and not isinstance(length, int):
        return False
    return pattern.is_worthwhile(length)


def _is_equal_for_all_queries(mask: Mask | None) -> bool:
    if mask is None:
        return True
    mask = with_head_axis(mask)
    return mask.shape[1] == mask.shape[2] == 1


def _as_key_mask(mask: Mask | None, key: Tensor) -> Mask | None:
    """Returns a mask that is equal for all queries as `(batch, key_length)`."""
    if mask is None:
        return None
    return ops.broadcast_to(with_head_axis(mask)[:, 0, 0], ops.shape(key)[:2])
