"""Encoder block: one layer of a Transformer encoder."""

import keras

from keras_transformer.layers.argument_errors import check_embedded
from keras_transformer.layers.block import Block
from keras_transformer.layers.sub_layers import freeze_new_sub_layers
from keras_transformer.types import Mask, Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderBlock(Block):
    """Encoder block that can replace `keras_hub.layers.TransformerEncoder`.

    The block contains self-attention and a position-wise feed-forward network. Each
    has a residual connection with normalisation: after the sum as in the paper
    (post-norm), or of the input of the sub-layer (pre-norm). A stack of pre-norm
    blocks needs one more normalisation after the last block, which `EncoderStack`
    contains. Constructor, call and weight order are those of KerasHub.

    Args:
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads. It must divide `hidden_dim`,
            unless `attention_options` contains `key_dim`.
        dropout: float in [0, 1), dropout rate of the attention scores and of the
            output of each sub-layer.
        activation: activation of the feed-forward networks.
        layer_norm_epsilon: float, epsilon of the normalisations.
        kernel_initializer: initializer of all attention and feed-forward kernels.
        bias_initializer: initializer of all attention and feed-forward biases.
        normalize_first: bool, whether to normalise the input of each sub-layer
            (pre-norm) instead of its output (post-norm).
        positions: `PositionScheme` to copy, or `None`. An encoding is added to the
            inputs. Any other scheme acts in each self-attention.
        attention_options: dictionary of further arguments of each
            `MultiHeadAttention`, such as `num_key_value_heads` or a separate
            `dropout`. `pattern` and `sliding_window` apply to self-attention only.
        feed_forward_options: dictionary of further arguments of each
            `FeedForward`, such as `gated` or a separate `dropout`.
        residual_options: dictionary of further arguments of each `Residual`, such
            as `normalization` or `stochastic_depth`.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`. Its Keras mask is
            applied and passed on.
        padding_mask: boolean tensor `(batch, length)`, `True` = a real token.
        attention_mask: boolean tensor that broadcasts to
            `(batch, length, length)`, `True` = attend.
        training: bool, whether to apply dropout.
        return_attention_scores: bool, whether to return the attention scores too.
        positions: int tensor `(length,)` or `(batch, length)`, positions of the
            inputs. Defaults to 0, 1, 2, ….
        mask: boolean tensor `(batch, length)`, `True` = a real token. Defaults to the
            Keras mask of `inputs`. Wrappers such as `keras.layers.TimeDistributed`
            pass it by this name.

    Returns:
        Tensor `(batch, length, hidden_dim)`. With `return_attention_scores=True`, a
        pair of this tensor and the scores `(batch, num_heads, length, length)`.

    Raises:
        ValueError: if an argument is out of range or `num_heads` does not divide
            `hidden_dim`.

    Example:

    >>> block = EncoderBlock(intermediate_dim=16, num_heads=2)
    >>> tuple(block(np.ones((3, 5, 8), "float32")).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
        - [Xiong et al., 2020](https://arxiv.org/abs/2002.04745) (pre-norm)
    """

    def build(self, inputs_shape: Shape) -> None:
        shape = inputs_shape
        self.self_attention = self._build_self_attention(shape)
        self.self_attention_residual = self._build_residual(
            "self_attention_residual", shape
        )
        self.feed_forward_residual = self._build_residual(
            "feed_forward_residual", shape
        )
        self.feed_forward = self._build_feed_forward(shape)
        freeze_new_sub_layers(self)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        check_embedded(self, inputs)
        x = self._add_encoding(inputs, positions)
        x, extras = self._attend(
            self.self_attention,
            self.self_attention_residual,
            x,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            cache=None,
            training=training,
            return_attention_scores=return_attention_scores,
            query_mask=mask,
            value_mask=mask,
            query_positions=positions,
            key_positions=positions,
        )
        x = self._feed_forward_with_residual(x, training)
        return x if extras.scores is None else (x, extras.scores)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape
