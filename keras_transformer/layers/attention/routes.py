"""Attention of heads under a pattern and positions: dense, or block by block."""

import functools
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.layers.attention.patterns import AttentionPattern
from keras_transformer.layers.attention.scaled_dot_product_attention import (
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


def attend(
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    *,
    pattern: AttentionPattern | None = None,
    positions: PositionScheme | None = None,
    query_positions: Any = None,
    key_positions: Any = None,
    use_causal_mask: bool = False,
    return_attention_scores: bool = False,
    is_self_attention: bool = True,
    dropout: Callable[[Any], Any] | None = None,
    flash_attention: bool | None = None,
) -> Any:
    """Attends by the cheaper of two routes that agree.

    The dense route computes all scores under the mask of the pattern. In
    blocks, only those near the pattern's are computed: whenever there is a
    pattern for which it pays, the positions are 0, 1, 2, …, the mask is the same
    for every query, and no scores are asked for.

    Args:
        query: float tensor `(batch, query_length, num_heads, key_dim)`.
        key: float tensor `(batch, key_length, num_key_value_heads, key_dim)`.
        value: float tensor `(batch, key_length, num_key_value_heads, value_dim)`.
        attention_mask: boolean tensor `(batch, query_length, key_length)` or
            `(batch, num_heads, query_length, key_length)`; axes may be 1.
        pattern: which positions attend to which; `None` = all to all.
        positions: a scheme whose bias is added to the logits.
        query_positions: int tensor `(query_length,)` or `(rows, query_length)`,
            where `rows` divides the batch and its sequences repeat; 0, 1, 2, … if
            `None`.
        key_positions: int tensor `(key_length,)` or `(rows, key_length)`.
        use_causal_mask: whether a query attends only to keys up to its position.
        return_attention_scores: whether to return the scores as well.
        is_self_attention: whether queries and keys are of the same tokens.
        dropout: a function applied to the scores before they weigh the values.
        flash_attention: as in `keras.ops.dot_product_attention`.

    Returns:
        What `scaled_dot_product_attention` returns.
    """
    dense = functools.partial(
        _attend_densely,
        pattern=pattern,
        positions=positions,
        use_causal_mask=use_causal_mask,
        dropout=dropout,
        flash_attention=flash_attention,
    )
    in_order = query_positions is None and key_positions is None
    if (
        pattern is not None
        and in_order
        and is_self_attention
        and not return_attention_scores
        and _is_for_every_query(attention_mask)
        and _blocks_pay(pattern, query.shape[1])
    ):

        def attend_block(*block: Any) -> Any:
            query, key, value, query_positions, key_positions, key_mask = block
            mask = attention_mask_from_padding(key_mask)
            return dense(query, key, value, query_positions, key_positions, mask)

        key_mask = _as_key_mask(attention_mask, key)
        return pattern.attend(
            attend_block, query, key, value, key_mask, use_causal_mask
        )
    return dense(
        query,
        key,
        value,
        query_positions,
        key_positions,
        attention_mask,
        return_attention_scores=return_attention_scores,
    )


def _attend_densely(
    query: Any,
    key: Any,
    value: Any,
    query_positions: Any,
    key_positions: Any,
    mask: Any,
    *,
    pattern: AttentionPattern | None,
    positions: PositionScheme | None,
    use_causal_mask: bool,
    dropout: Callable[[Any], Any] | None,
    flash_attention: bool | None,
    return_attention_scores: bool = False,
) -> Any:
    in_order = query_positions is None and key_positions is None
    if query_positions is None:
        query_positions = sequence_positions(query)
    if key_positions is None:
        key_positions = sequence_positions(key)

    def for_batch(x: Any) -> Any:
        return _repeat_rows(x, ops.shape(query)[0])

    masks = [with_head_axis(mask)]
    if pattern is not None:
        patterned = pattern.mask(query_positions, key_positions)
        masks.append(for_batch(with_head_axis(patterned)))
    if use_causal_mask and not in_order:
        past = ops.less_equal(relative_positions(query_positions, key_positions), 0)
        masks.append(for_batch(with_head_axis(past)))
    bias = None
    if positions is not None:
        bias = positions.bias(query_positions, key_positions)
    if bias is not None:
        bias = for_batch(bias if len(bias.shape) == 4 else ops.expand_dims(bias, 0))
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attention_mask=merge_masks(*masks),
        return_attention_scores=return_attention_scores,
        dropout=dropout,
        flash_attention=flash_attention,
        bias=bias,
        use_causal_mask=use_causal_mask and in_order,
    )


def _repeat_rows(x: Any, batch: Any) -> Any:
    """From `(rows, …)` to `(batch, …)`, all rows again and again; 1 row broadcasts."""
    if x.shape[0] == 1:
        return x
    rows, *dims = ops.shape(x)
    x = ops.broadcast_to(ops.expand_dims(x, 0), (batch // rows, rows, *dims))
    return ops.reshape(x, (batch, *dims))


def _blocks_pay(pattern: AttentionPattern, length: Any) -> bool:
    """A length may be a symbol of JAX, which no number can be compared with."""
    return (length is None or isinstance(length, int)) and pattern.pays(length)


def _is_for_every_query(mask: Any) -> bool:
    if mask is None:
        return True
    mask = with_head_axis(mask)
    return mask.shape[1] == mask.shape[2] == 1


def _as_key_mask(mask: Any, key: Any) -> Any:
    """From a mask that is the same for every query to `(batch, key_length)`."""
    if mask is None:
        return None
    return ops.broadcast_to(with_head_axis(mask)[:, 0, 0], ops.shape(key)[:2])
