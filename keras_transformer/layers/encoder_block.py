"""One layer of the encoder."""

from typing import Any

import keras

from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masking import attention_mask_from_padding, merge_masks
from keras_transformer.layers.multi_head_attention import (
    MultiHeadAttention,
    key_dim_per_head,
)
from keras_transformer.layers.residual import Residual


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderBlock(keras.layers.Layer):
    """One layer of the Transformer encoder, a drop-in for KerasHub's.

    Self-attention, then a position-wise feed-forward network, each inside a
    residual connection with layer normalisation: after the sum as in the paper
    (`normalize_first=False`), or on the way into the sub-layer
    (`normalize_first=True`, "pre-norm"; a stack of such blocks wants one more
    normalisation at its end). Constructor, call and weight order are those of
    `keras_hub.layers.TransformerEncoder`.

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

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`. Its Keras mask, if
            it has one, is honoured and passed on.
        padding_mask: boolean tensor `(batch, length)`, `True` = a real token.
        attention_mask: boolean tensor that broadcasts to
            `(batch, length, length)`, `True` = attend.
        training: whether dropout is applied.
        return_attention_scores: whether to return the scores as well.

    Returns:
        Tensor `(batch, length, hidden_dim)`; with
        `return_attention_scores=True` the pair of it and the scores
        `(batch, num_heads, length, length)`.

    Raises:
        ValueError: if `hidden_dim` is not divisible by `num_heads`.

    Example:

    >>> block = EncoderBlock(intermediate_dim=16, num_heads=2)
    >>> block(np.ones((3, 5, 8), "float32")).shape
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
        - [Xiong et al., 2020](https://arxiv.org/abs/2002.04745) (pre-norm)
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

    def build(self, inputs_shape: Any) -> None:
        self.self_attention = MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=key_dim_per_head(inputs_shape[-1], self.num_heads),
            dropout=self.dropout,
            dtype=self.dtype_policy,
            name="self_attention",
            **self._initializers(),
        )
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_residual = self._residual("self_attention_residual")
        self.self_attention_residual.build(inputs_shape)
        self.feed_forward_residual = self._residual("feed_forward_residual")
        self.feed_forward_residual.build(inputs_shape)
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dtype=self.dtype_policy,
            name="feed_forward",
            **self._initializers(),
        )
        self.feed_forward.build(inputs_shape)

    def _residual(self, name: str) -> Residual:
        return Residual(
            self.dropout,
            self.layer_norm_epsilon,
            self.normalize_first,
            dtype=self.dtype_policy,
            name=name,
        )

    def _initializers(self) -> dict[str, Any]:
        """Serialized, so that every sub-layer makes (and seeds) its own."""
        return {
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        mask = merge_masks(attention_mask, attention_mask_from_padding(padding_mask))
        normed = self.self_attention_residual.prepare(inputs)
        attended = self.self_attention(
            normed,
            normed,
            attention_mask=mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        attended, *scores = attended if return_attention_scores else (attended,)
        x = self.self_attention_residual(inputs, attended, training=training)
        fed = self.feed_forward(self.feed_forward_residual.prepare(x))
        x = self.feed_forward_residual(x, fed, training=training)
        return (x, *scores) if return_attention_scores else x

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
