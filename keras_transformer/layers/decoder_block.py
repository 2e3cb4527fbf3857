"""One layer of the decoder."""

from typing import Any

import keras

from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.block import Block
from keras_transformer.layers.freezing import freeze_new_layers
from keras_transformer.layers.positions.scheme import sequence_positions


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderBlock(Block):
    """One layer of the Transformer decoder, a drop-in for KerasHub's.

    Causal self-attention, attention to the encoder's output (if the block is
    called with one), then a position-wise feed-forward network, each inside a
    residual connection with layer normalisation. Constructor, call, caches,
    return values and weight order are those of
    `keras_hub.layers.TransformerDecoder`; on top, attention scores on request,
    and a cross-attention cache that can be used without the encoder's output.

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
        decoder_sequence: float tensor `(batch, target_length, hidden_dim)`. Its
            Keras mask, if it has one, is honoured and passed on.
        encoder_sequence: float tensor `(batch, source_length, encoder_dim)`.
            Whether it is given at the first call decides for good whether the
            block has cross-attention.
        decoder_padding_mask: boolean tensor `(batch, target_length)`.
        decoder_attention_mask: boolean tensor that broadcasts to
            `(batch, target_length, key_length)`, where `key_length` is the
            length of the cache if there is one and `target_length` if not.
        encoder_padding_mask: boolean tensor `(batch, source_length)`.
        encoder_attention_mask: boolean tensor that broadcasts to
            `(batch, target_length, source_length)`. All masks: `True` = attend.
        self_attention_cache: float tensor
            `(batch, 2, cache_length, num_key_value_heads, key_dim)`.
        self_attention_cache_update_index: int or int scalar tensor, position of
            `decoder_sequence` in the cache.
        cross_attention_cache: float tensor
            `(batch, 2, source_length, num_key_value_heads, key_dim)`.
        cross_attention_cache_update_index: 0 to fill the cache from
            `encoder_sequence`, `None` to use it as it is.
        use_causal_mask: whether a position sees only those up to its own.
        training: whether dropout is applied.
        return_attention_scores: whether to return the scores as well.
        positions: int tensor `(target_length,)` or `(batch, target_length)`, those
            of `decoder_sequence`; `self_attention_cache_update_index` (or 0) +
            0, 1, 2, … if `None`.
        cache_positions: int tensor `(cache_length,)` or `(batch, cache_length)`,
            those of the self-attention cache; 0, 1, 2, … if `None`.

    Returns:
        `outputs` `(batch, target_length, hidden_dim)`; or, with caches,
        `(outputs, self_attention_cache)` without cross-attention and
        `(outputs, self_attention_cache, cross_attention_cache)` with it. With
        `return_attention_scores=True` a dictionary stands last: the scores
        `(batch, num_heads, target_length, key_length)` under
        `"self_attention"`, with cross-attention also
        `(batch, num_heads, target_length, source_length)` under
        `"cross_attention"`.

    Raises:
        ValueError: if `hidden_dim` is not divisible by `num_heads`, or a call
            gives or leaves out `encoder_sequence` or a cache against the way
            the block was built.

    Example:

    >>> block = DecoderBlock(intermediate_dim=16, num_heads=2)
    >>> target = np.ones((3, 5, 8), "float32")
    >>> source = np.ones((3, 7, 8), "float32")
    >>> tuple(block(target, source).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
    """

    def build(
        self, decoder_sequence_shape: Any, encoder_sequence_shape: Any = None
    ) -> None:
        shape = decoder_sequence_shape
        self.self_attention = self._self_attention(shape)
        self.self_attention_residual = self._residual("self_attention_residual", shape)
        self.cross_attention: MultiHeadAttention | None = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._cross_attention(shape, encoder_sequence_shape)
            self.cross_attention_residual = self._residual(
                "cross_attention_residual", shape
            )
        self.feed_forward = self._feed_forward(shape)
        self.feed_forward_residual = self._residual("feed_forward_residual", shape)
        freeze_new_layers(self)

    def call(
        self,
        decoder_sequence: Any,
        encoder_sequence: Any = None,
        decoder_padding_mask: Any = None,
        decoder_attention_mask: Any = None,
        encoder_padding_mask: Any = None,
        encoder_attention_mask: Any = None,
        self_attention_cache: Any = None,
        self_attention_cache_update_index: Any = None,
        cross_attention_cache: Any = None,
        cross_attention_cache_update_index: Any = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Any = None,
        cache_positions: Any = None,
    ) -> Any:
        self._check_inputs(
            encoder_sequence,
            self_attention_cache,
            cross_attention_cache,
            cross_attention_cache_update_index,
        )
        if positions is None and self_attention_cache_update_index is not None:
            start = self_attention_cache_update_index
            positions = sequence_positions(decoder_sequence, start)
        if self_attention_cache is None and cache_positions is None:
            cache_positions = positions
        x, self_extras = self._attend(
            self.self_attention,
            self.self_attention_residual,
            self._add_positions(decoder_sequence, positions),
            attention_mask=decoder_attention_mask,
            padding_mask=decoder_padding_mask,
            use_causal_mask=use_causal_mask,
            cache=self_attention_cache,
            cache_update_index=self_attention_cache_update_index,
            query_positions=positions,
            key_positions=cache_positions,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        cross_extras: dict[str, Any] = {}
        if self.cross_attention is not None:
            x, cross_extras = self._attend(
                self.cross_attention,
                self.cross_attention_residual,
                x,
                encoder_sequence,
                attention_mask=encoder_attention_mask,
                padding_mask=encoder_padding_mask,
                cache=cross_attention_cache,
                cache_update_index=cross_attention_cache_update_index,
                training=training,
                return_attention_scores=return_attention_scores,
            )
        x = self._feed(x, training)
        return _outputs(x, self_extras, cross_extras, return_attention_scores)

    def compute_output_shape(
        self, decoder_sequence_shape: Any, encoder_sequence_shape: Any = None
    ) -> Any:
        return decoder_sequence_shape

    def _check_inputs(
        self,
        encoder_sequence: Any,
        self_attention_cache: Any,
        cross_attention_cache: Any,
        cross_attention_cache_update_index: Any,
    ) -> None:
        if self.cross_attention is None:
            if encoder_sequence is not None or cross_attention_cache is not None:
                raise ValueError(
                    "`encoder_sequence` must be `None` for a `DecoderBlock` that was "
                    "built without it; received one. Build the block with "
                    "`block(decoder_sequence, encoder_sequence)` to have "
                    "cross-attention."
                )
            return
        if (self_attention_cache is None) != (cross_attention_cache is None):
            raise ValueError(
                "`self_attention_cache` and `cross_attention_cache` must both be given "
                "or both be `None`; received only "
                f"`{'self' if cross_attention_cache is None else 'cross'}"
                "_attention_cache`."
            )
        cached = cross_attention_cache is not None
        if encoder_sequence is None and not (
            cached and cross_attention_cache_update_index is None
        ):
            raise ValueError(
                "`encoder_sequence` must be given to a `DecoderBlock` that was built "
                "with it, unless a filled `cross_attention_cache` stands in for it; "
                "received `encoder_sequence=None`."
            )

    def compute_cross_attention_cache(self, encoder_sequence: Any) -> Any:
        """Projects the encoder's output once, for all steps of a decoding.

        Args:
            encoder_sequence: float tensor `(batch, source_length, encoder_dim)`.

        Returns:
            Cache `(batch, 2, source_length, num_key_value_heads, key_dim)`, for
            the call argument `cross_attention_cache`.

        Raises:
            ValueError: if the block was built without cross-attention.
        """
        if self.cross_attention is None:
            raise ValueError(
                "a `DecoderBlock` must be built with `encoder_sequence` to have "
                "cross-attention; received no such input so far."
            )
        return self.cross_attention.compute_cache(encoder_sequence)


def _outputs(
    x: Any,
    self_extras: dict[str, Any],
    cross_extras: dict[str, Any],
    return_attention_scores: bool,
) -> Any:
    """Puts caches and scores behind `x`, in the order of KerasHub."""
    extras = {"self_attention": self_extras, "cross_attention": cross_extras}
    caches = [extra["cache"] for extra in extras.values() if "cache" in extra]
    scores = {name: e["scores"] for name, e in extras.items() if "scores" in e}
    outputs = (x, *caches, *([scores] if return_attention_scores else []))
    return outputs if len(outputs) > 1 else x
