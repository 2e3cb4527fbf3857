"""What the schemes that add to attention logits have in common."""

from typing import Any

from keras import ops

from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    sequence_positions,
)


def relative_positions(query_positions: Any, key_positions: Any) -> Any:
    """Computes how far each key lies behind each query.

    Args:
        query_positions: int tensor `(query_length,)` or `(batch, query_length)`.
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`.

    Returns:
        int32 tensor `(query_length, key_length)`, or
        `(batch, query_length, key_length)` if either positions have an axis for
        the batch: `key position - query position`, negative for earlier keys.

    Example:

    >>> relative = relative_positions(np.array([4, 5]), np.array([3, 4, 5]))
    >>> ops.convert_to_numpy(relative).tolist()
    [[-1, 0, 1], [-2, -1, 0]]
    """
    queries = ops.expand_dims(ops.cast(query_positions, "int32"), -1)
    return ops.expand_dims(ops.cast(key_positions, "int32"), -2) - queries


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
