"""The mask and the bias of all pairs of positions."""

from keras import ops

from keras_transformer.layers.attention.patterns import AttentionPattern
from keras_transformer.layers.masking import merge_masks, with_head_axis
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    relative_positions,
    sequence_positions,
)
from keras_transformer.types import Mask, Size, Tensor


def mask_and_bias(
    query: Tensor,
    key: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    mask: Mask | None,
    pattern: AttentionPattern | None,
    scheme: PositionScheme | None,
    use_causal_mask: bool,
) -> tuple[Mask | None, Tensor | None, bool]:
    """Returns mask and bias of all pairs, and whether a causal mask is to be added.

    The positions are int tensors `(length,)` or `(rows, length)`, where `rows` divides
    the batch size; `None` = 0, 1, 2, …, for which fused kernels have a causal mask.
    """
    is_in_order = query_positions is None and key_positions is None
    if query_positions is None:
        query_positions = sequence_positions(query)
    if key_positions is None:
        key_positions = sequence_positions(key)
    batch = ops.shape(query)[0]
    masks = [with_head_axis(mask)]
    if pattern is not None:
        pattern_mask = pattern.mask(query_positions, key_positions)
        masks.append(_repeat_rows(with_head_axis(pattern_mask), batch))
    if use_causal_mask and not is_in_order:
        past = ops.less_equal(relative_positions(query_positions, key_positions), 0)
        masks.append(_repeat_rows(with_head_axis(past), batch))
    bias = None
    if scheme is not None:
        bias = scheme.bias(query_positions, key_positions)
    if bias is not None:
        bias = bias if len(bias.shape) == 4 else ops.expand_dims(bias, 0)
        bias = _repeat_rows(bias, batch)
    return merge_masks(*masks), bias, use_causal_mask and is_in_order


def _repeat_rows(x: Tensor, batch: Size) -> Tensor:
    """Repeats `(rows, …)` to `(batch, …)`. A single row is broadcast later."""
    if x.shape[0] == 1:
        return x
    rows, *dims = ops.shape(x)
    x = ops.broadcast_to(ops.expand_dims(x, 0), (batch // rows, rows, *dims))
    return ops.reshape(x, (batch, *dims))
