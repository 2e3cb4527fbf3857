"""One layer of the encoder."""

from typing import Any

import keras

from keras_transformer.layers.block import Block
from keras_transformer.layers.freezing import freeze_new_layers


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderBlock(Block):
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
        positions: a `PositionScheme` to copy: an encoding is added to the
            inputs of the block, any other scheme acts in its self-attention.
        attention_options: dictionary of further arguments of the block's
            `MultiHeadAttention`, such as `num_key_value_heads`, a `dropout` of
            its own, or a `pattern` (for the self-attention alone).
        feed_forward_options: dictionary of further arguments of its
            `FeedForward`, such as `gated` or a `dropout` of its own.
        residual_options: dictionary of further arguments of its `Residual`
            connections, such as `normalization` or `stochastic_depth`.
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
    >>> tuple(block(np.ones((3, 5, 8), "float32")).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
        - [Xiong et al., 2020](https://arxiv.org/abs/2002.04745) (pre-norm)
    """

    def build(self, inputs_shape: Any) -> None:
        shape = inputs_shape
        self.self_attention = self._self_attention(shape)
        self.self_attention_residual = self._residual("self_attention_residual", shape)
        self.feed_forward_residual = self._residual("feed_forward_residual", shape)
        self.feed_forward = self._feed_forward(shape)
        freeze_new_layers(self)

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        x, extras = self._attend(
            self.self_attention,
            self.self_attention_residual,
            self._add_positions(inputs),
            attention_mask=attention_mask,
            padding_mask=padding_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        x = self._feed(x, training)
        return (x, extras["scores"]) if return_attention_scores else x

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape
