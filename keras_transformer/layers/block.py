"""What an encoder block and a decoder block have in common."""

from typing import Any

import keras

from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import (
    MultiHeadAttention,
    key_dim_per_head,
)
from keras_transformer.layers.residual import Residual


class Block(keras.layers.Layer):
    """The settings and the sub-layers that `EncoderBlock` and `DecoderBlock` share.

    Not a layer of its own: it has no `call`.

    Args:
        intermediate_dim: int, width of the feed-forward network (d_ff).
        num_heads: int, number of attention heads; must divide the width of the
            inputs.
        dropout: float in [0, 1), dropout rate of the attention scores and of
            each sub-layer's output.
        activation: activation of the feed-forward network.
        layer_norm_epsilon: float, epsilon of the layer normalisations.
        kernel_initializer: initializer of all kernels.
        bias_initializer: initializer of all biases.
        normalize_first: whether to normalise the input of each sub-layer
            rather than the output.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.
    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        normalize_first: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        self.supports_masking = True

    def _attention(
        self, name: str, query_shape: Any, value_shape: Any
    ) -> MultiHeadAttention:
        attention = MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=key_dim_per_head(query_shape[-1], self.num_heads),
            dropout=self.dropout,
            dtype=self.dtype_policy,
            name=name,
            **self._initializers(),
        )
        attention.build(query_shape, value_shape)
        return attention

    def _residual(self, name: str, shape: Any) -> Residual:
        residual = Residual(
            self.dropout,
            self.layer_norm_epsilon,
            self.normalize_first,
            dtype=self.dtype_policy,
            name=name,
        )
        residual.build(shape)
        return residual

    def _feed_forward(self, shape: Any) -> FeedForward:
        feed_forward = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dtype=self.dtype_policy,
            name="feed_forward",
            **self._initializers(),
        )
        feed_forward.build(shape)
        return feed_forward

    def _attend(
        self,
        attention: MultiHeadAttention,
        residual: Residual,
        inputs: Any,
        value: Any = None,
        **options: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Runs an attention sub-layer; returns its output, and cache and scores."""
        query = residual.prepare(inputs)
        attended = attention(query, query if value is None else value, **options)
        extras = {}
        if options.get("cache") is not None:
            *attended, extras["cache"] = attended
        if options["return_attention_scores"]:
            *attended, extras["scores"] = attended
        output = attended[0] if extras else attended
        return residual(inputs, output, training=options["training"]), extras

    def _initializers(self) -> dict[str, Any]:
        """Serialized, so that every sub-layer makes (and seeds) its own."""
        return {
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            **self._initializers(),
        }
