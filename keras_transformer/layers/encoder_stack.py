"""Encoder stack: the blocks of a Transformer encoder."""

import keras

from keras_transformer.layers.argument_errors import check_embedded
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.stack import Stack
from keras_transformer.types import Mask, Options, Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderStack(Stack):
    """Encoder stack: `num_layers` encoder blocks.

    A normalisation follows the last block if the blocks are pre-norm. A
    `stochastic_depth` in `residual_options` is the rate of the last block; the rates
    of the blocks rise linearly, as in section 3 of Huang et al., 2016.

    Args:
        num_layers: int, number of blocks (N in the paper).
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads. It must divide `hidden_dim`,
            unless `attention_options` contains `key_dim`.
        dropout: float in [0, 1), dropout rate of the attention scores and of the
            output of each sub-layer.
        activation: activation of the feed-forward networks.
        layer_norm_epsilon: float, epsilon of the normalisations.
        normalize_first: bool, whether to normalise the input of each sub-layer
            (pre-norm) instead of its output (post-norm).
        positions: `PositionScheme` to copy, or `None`. An encoding is added to the
            inputs. Any other scheme acts in each self-attention.
        attention_options: dictionary of further arguments of each
            `MultiHeadAttention`, such as `num_key_value_heads` or a separate
            `dropout`. `pattern` and `sliding_window` apply to self-attention only.
            `sliding_window` may be a list with an int or `None` for each block.
        feed_forward_options: dictionary of further arguments of each
            `FeedForward`, such as `gated` or a separate `dropout`.
        residual_options: dictionary of further arguments of each `Residual`, such
            as `normalization` or `stochastic_depth`.
        rematerialize: bool, whether training recomputes the activations inside the
            blocks for the gradient instead of storing them. This needs less memory
            and about a third more computation.
        kernel_initializer: initializer of all attention and feed-forward kernels.
        bias_initializer: initializer of all attention and feed-forward biases.
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
        pair of this tensor and a list of the scores of each block
        `(batch, num_heads, length, length)`.

    Raises:
        ValueError: if an argument is out of range, `num_heads` does not divide
            `hidden_dim`, or `sliding_window` has another number of entries than there
            are blocks.

    Example:

    >>> encoder = EncoderStack(num_layers=2, intermediate_dim=16, num_heads=2)
    >>> tuple(encoder(np.ones((3, 5, 8), "float32")).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
        - [Huang et al., 2016](https://arxiv.org/abs/1603.09382) (stochastic depth)
    """

    block_class = EncoderBlock

    def build(self, inputs_shape: Shape) -> None:
        self._build_blocks(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        check_embedded(self, inputs)
        options: Options = {
            "padding_mask": padding_mask,
            "attention_mask": attention_mask,
            "training": training,
            "positions": positions,
            "mask": mask,
        }
        if not return_attention_scores:
            return self._normalize(self._call_blocks(inputs, **options))
        x, scores = inputs, []
        for block in self.blocks:
            x, block_scores = self._call_block(
                block, x, return_attention_scores=True, **options
            )
            scores.append(block_scores)
        return self._normalize(x), scores

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape
