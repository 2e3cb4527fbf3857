"""Attention with linear biases (ALiBi)."""

import math

import keras
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import (
    AttentionBias,
    relative_positions,
)
from keras_transformer.layers.sub_layers import known_size
from keras_transformer.types import Config, Shape, Tensor
from keras_transformer_runtime.arguments import check_positive


@keras.saving.register_keras_serializable("keras_transformer")
class AlibiBias(AttentionBias):
    """Linear bias of the attention logits (ALiBi).

    `bias = -slope · |query position - key position|`. The slopes of `n` heads are
    `2^(-max_bias / n)` and its powers. If `n` is not a power of two, they are the
    slopes of the next smaller power, followed by every other slope of the next
    larger one. The layer has no weights and no limit of the length. The distance
    counts in both directions, so that encoders can use the bias too.

    Args:
        max_bias: float, the negative binary logarithm of the slope of the last head.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        attention_logits: float tensor
            `(batch, num_heads, query_length, key_length)`.
        query_positions: int tensor `(query_length,)` or
            `(batch, query_length)`. Defaults to 0, 1, 2, ….
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`.
            Defaults to 0, 1, 2, ….

    Returns:
        Tensor of the shape and dtype of `attention_logits`.

    Example:

    >>> logits = AlibiBias()(np.zeros((1, 2, 1, 3), "float32"))
    >>> ops.convert_to_numpy(logits)[0, :, 0].tolist()
    [[0.0, -0.0625, -0.125], [0.0, -0.00390625, -0.0078125]]

    Raises:
        ValueError: if `max_bias` is not finite and above 0.

    References:
        - [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3
    """

    @explains_arguments
    def __init__(self, max_bias: float = 8, **kwargs: object):
        super().__init__(**kwargs)
        check_positive(max_bias=max_bias)
        self.max_bias = max_bias

    def build(self, input_shape: Shape) -> None:
        self.slopes = tuple(alibi_slopes(known_size(input_shape, 1), self.max_bias))

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distances = ops.abs(relative_positions(query_positions, key_positions))
        slopes = ops.convert_to_tensor(self.slopes, "float32")
        return -slopes[:, None, None] * ops.expand_dims(
            ops.cast(distances, "float32"), -3
        )

    def get_config(self) -> Config:
        return {**super().get_config(), "max_bias": self.max_bias}


def alibi_slopes(num_heads: int, max_bias: float) -> list[float]:
    """Computes the slope of each head."""
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-max_bias * (i + 1) / power) for i in range(power)]
    if power == num_heads:
        return slopes
    between = alibi_slopes(2 * power, max_bias)[::2]
    return slopes + between[: num_heads - power]
