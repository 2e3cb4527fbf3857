"""Decoder block: one layer of a Transformer decoder."""

from typing import Any

import keras

from keras_transformer.layers.argument_errors import check_embedded
from keras_transformer.layers.attention.key_values import Cache
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.block import AttentionExtras, Block
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.sub_layers import freeze_new_sub_layers
from keras_transformer.types import Mask, Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderBlock(Block):
    """Decoder block that can replace `keras_hub.layers.TransformerDecoder`.

    The block contains causal self-attention, cross-attention to the output of the
    encoder if the block is built with an `encoder_sequence`, and a position-wise
    feed-forward network. Each has a residual connection with normalisation.
    Constructor, call, caches, return values and weight order are those of KerasHub.
    In addition, the block returns attention scores, and a filled cross-attention
    cache replaces the `encoder_sequence`.

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
        decoder_sequence: float tensor `(batch, target_length, hidden_dim)`. Its
            Keras mask is applied and passed on.
        encoder_sequence: float tensor `(batch, source_length, encoder_dim)`, or
            `None`. The first call decides whether the block has cross-attention.
        decoder_padding_mask: boolean tensor `(batch, target_length)`, `True` = a
            real token.
        decoder_attention_mask: boolean tensor that broadcasts to
            `(batch, target_length, key_length)`, `True` = attend. `key_length` is
            the length of the self-attention cache, or `target_length` without one.
        encoder_padding_mask: boolean tensor `(batch, source_length)`.
        encoder_attention_mask: boolean tensor that broadcasts to
            `(batch, target_length, source_length)`.
        self_attention_cache: float tensor
            `(batch, 2, cache_length, num_key_value_heads, key_dim)`, or `KeyValues`.
        self_attention_cache_update_index: int or int scalar tensor, position of
            `decoder_sequence` in the cache.
        cross_attention_cache: float tensor
            `(batch, 2, source_length, num_key_value_heads, key_dim)`, or `KeyValues`.
        cross_attention_cache_update_index: 0 to fill the cache from
            `encoder_sequence`, `None` to use the cache without a change.
        use_causal_mask: bool, whether a query attends only to keys up to its own
            position.
        training: bool, whether to apply dropout.
        return_attention_scores: bool, whether to return the attention scores too.
        positions: int tensor `(target_length,)` or `(batch, target_length)`,
            positions of `decoder_sequence`. Defaults to
            `self_attention_cache_update_index` (or 0) + 0, 1, 2, ….
        cache_positions: int tensor `(cache_length,)` or `(batch, cache_length)`,
            positions of the entries of the self-attention cache. Defaults to 0, 1,
            2, ….
        mask: boolean tensor `(batch, target_length)`, `True` = a real token. Defaults
            to the Keras mask of `decoder_sequence`. Wrappers such as
            `keras.layers.TimeDistributed` pass it by this name.

    Returns:
        `outputs` `(batch, target_length, hidden_dim)`. With caches,
        `(outputs, self_attention_cache)` without cross-attention and
        `(outputs, self_attention_cache, cross_attention_cache)` with it. With
        `return_attention_scores=True`, a dictionary is the last element: the scores
        `(batch, num_heads, target_length, key_length)` under `"self_attention"`
        and, with cross-attention, `(batch, num_heads, target_length,
        source_length)` under `"cross_attention"`.

    Raises:
        ValueError: if an argument is out of range, `num_heads` does not divide
            `hidden_dim`, or `encoder_sequence` or a cache does not match the way the
            block was built.

    Example:

    >>> block = DecoderBlock(intermediate_dim=16, num_heads=2)
    >>> target = np.ones((3, 5, 8), "float32")
    >>> source = np.ones((3, 7, 8), "float32")
    >>> tuple(block(target, source).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
    """

    cross_attention: MultiHeadAttention | None
    cross_attention_residual: Residual

    def build(
        self,
        decoder_sequence_shape: Shape,
        encoder_sequence_shape: Shape | None = None,
    ) -> None:
        shape = decoder_sequence_shape
        self.self_attention = self._build_self_attention(shape)
        self.self_attention_residual = self._build_residual(
            "self_attention_residual", shape
        )
        self.cross_attention = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._build_cross_attention(
                shape, encoder_sequence_shape
            )
            self.cross_attention_residual = self._build_residual(
                "cross_attention_residual", shape
            )
        self.feed_forward = self._build_feed_forward(shape)
        self.feed_forward_residual = self._build_residual(
            "feed_forward_residual", shape
        )
        freeze_new_sub_layers(self)

    def call(
        self,
        decoder_sequence: Tensor,
        encoder_sequence: Tensor | None = None,
        decoder_padding_mask: Mask | None = None,
        decoder_attention_mask: Mask | None = None,
        encoder_padding_mask: Mask | None = None,
        encoder_attention_mask: Mask | None = None,
        self_attention_cache: Cache | None = None,
        self_attention_cache_update_index: Size | None = None,
        cross_attention_cache: Cache | None = None,
        cross_attention_cache_update_index: Size | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Tensor | None = None,
        cache_positions: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Any:
        check_embedded(self, decoder_sequence, encoder_sequence)
        self._check_inputs(
            encoder_sequence,
            self_attention_cache,
            cross_attention_cache,
            cross_attention_cache_update_index,
        )
        start = self_attention_cache_update_index
        if self_attention_cache is None and cache_positions is None:
            cache_positions = positions
        x, extras = self._attend(
            self.self_attention,
            self.self_attention_residual,
            self._add_encoding(decoder_sequence, positions, start),
            query_mask=mask,
            value_mask=mask,
            padding_mask=decoder_padding_mask,
            attention_mask=decoder_attention_mask,
            use_causal_mask=use_causal_mask,
            cache=self_attention_cache,
            cache_update_index=start,
            query_positions=positions,
            key_positions=cache_positions,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        results = {"self_attention": extras}
        if self.cross_attention is not None:
            x, results["cross_attention"] = self._attend(
                self.cross_attention,
                self.cross_attention_residual,
                x,
                encoder_sequence,
                query_mask=mask,
                padding_mask=encoder_padding_mask,
                attention_mask=encoder_attention_mask,
                cache=cross_attention_cache,
                cache_update_index=cross_attention_cache_update_index,
                training=training,
                return_attention_scores=return_attention_scores,
            )
        x = self._feed_forward_with_residual(x, training)
        return _outputs(x, results, return_attention_scores)

    def compute_output_shape(
        self,
        decoder_sequence_shape: Shape,
        encoder_sequence_shape: Shape | None = None,
    ) -> Shape:
        return decoder_sequence_shape

    def _check_inputs(
        self,
        encoder_sequence: Tensor | None,
        self_attention_cache: Cache | None,
        cross_attention_cache: Cache | None,
        cross_attention_cache_update_index: Size | None,
    ) -> None:
        if self.cross_attention is None:
            for name, value in (
                ("encoder_sequence", encoder_sequence),
                ("cross_attention_cache", cross_attention_cache),
            ):
                if value is not None:
                    raise ValueError(
                        f"`{name}` must be `None` for a decoder that was built without "
                        f"an `encoder_sequence`; received `{name}`, a tensor. Build "
                        "the decoder with `decoder(decoder_sequence, "
                        "encoder_sequence)` to have cross-attention."
                    )
            return
        if (self_attention_cache is None) != (cross_attention_cache is None):
            given = "self" if cross_attention_cache is None else "cross"
            raise ValueError(
                "`self_attention_cache` and `cross_attention_cache` must both be given "
                f"or both be `None`; received only `{given}_attention_cache`."
            )
        cache_is_filled = (
            cross_attention_cache is not None
            and cross_attention_cache_update_index is None
        )
        if encoder_sequence is None and not cache_is_filled:
            raise ValueError(
                "`encoder_sequence` must be given to a decoder that was built with "
                "one; received `encoder_sequence=None`. Only a filled "
                "`cross_attention_cache` replaces it."
            )


def _outputs(
    x: Tensor, results: dict[str, AttentionExtras], return_attention_scores: bool
) -> Any:
    """Returns `x` with the caches and scores after it, in KerasHub's order."""
    caches = [result.cache for result in results.values() if result.cache is not None]
    if not caches and not return_attention_scores:
        return x
    scores = {name: result.scores for name, result in results.items()}
    return (x, *caches, *([scores] if return_attention_scores else []))
