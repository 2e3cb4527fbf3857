"""The common part of the schemes that add to attention logits."""

from typing import Any

from keras import ops

from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    sequence_positions,
)


def add_bias(
    scheme: PositionScheme,
    attention_logits: Any,
    query_positions: Any = None,
    key_positions: Any = None,
) -> Any:
    """Adds the bias of a scheme to attention logits.

    Args:
        scheme: a built scheme that has a bias.
        attention_logits: float tensor
            `(batch, num_heads, query_length, key_length)`.
        query_positions: int tensor `(query_length,)` or
            `(batch, query_length)`; 0, 1, 2, … if `None`.
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`;
            0, 1, 2, … if `None`.

    Returns:
        Tensor of the shape and dtype of `attention_logits`; the sum is taken in
        float32 and cast last.
    """
    if query_positions is None:
        query_positions = sequence_positions(attention_logits, axis=2)
    if key_positions is None:
        key_positions = sequence_positions(attention_logits, axis=3)
    biased = ops.add(attention_logits, scheme.bias(query_positions, key_positions))
    return ops.cast(biased, attention_logits.dtype)
