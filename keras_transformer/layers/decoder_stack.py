"""Decoder stack: the blocks of a Transformer decoder."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.argument_errors import check_embedded
from keras_transformer.layers.attention.key_values import Cache, KeyValues
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.stack import Stack
from keras_transformer.types import Mask, Options, Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderStack(Stack):
    """Decoder stack: `num_layers` decoder blocks, with or without cross-attention.

    The first call decides whether the blocks have cross-attention. Without an
    `encoder_sequence`, the stack is the body of a decoder-only language model. A
    normalisation follows the last block if the blocks are pre-norm. A
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
        decoder_sequence: float tensor `(batch, target_length, hidden_dim)`. Its
            Keras mask is applied and passed on.
        encoder_sequence: float tensor `(batch, source_length, encoder_dim)`, or
            `None` for a stack without cross-attention.
        decoder_padding_mask: boolean tensor `(batch, target_length)`, `True` = a
            real token.
        decoder_attention_mask: boolean tensor that broadcasts to
            `(batch, target_length, key_length)`, `True` = attend. `key_length` is
            the length of the self-attention cache, or `target_length` without one.
        encoder_padding_mask: boolean tensor `(batch, source_length)`.
        encoder_attention_mask: boolean tensor that broadcasts to
            `(batch, target_length, source_length)`.
        self_attention_cache: list of the self-attention cache of each block: float
            tensor `(batch, 2, cache_length, num_key_value_heads, key_dim)`, or
            `KeyValues`.
        self_attention_cache_update_index: int or int scalar tensor, position of
            `decoder_sequence` in the caches.
        cross_attention_cache: list of the cross-attention cache of each block: float
            tensor `(batch, 2, source_length, num_key_value_heads, key_dim)`, or
            `KeyValues`.
        cross_attention_cache_update_index: 0 to fill the caches from
            `encoder_sequence`, `None` to use the caches without a change.
        use_causal_mask: bool, whether a query attends only to keys up to its own
            position.
        training: bool, whether to apply dropout.
        return_attention_scores: bool, whether to return the attention scores too.
        positions: int tensor `(target_length,)` or `(batch, target_length)`,
            positions of `decoder_sequence`. Defaults to
            `self_attention_cache_update_index` (or 0) + 0, 1, 2, ….
        cache_positions: int tensor `(cache_length,)` or `(batch, cache_length)`,
            positions of the entries of the self-attention caches. Defaults to 0, 1,
            2, ….
        mask: boolean tensor `(batch, target_length)`, `True` = a real token. Defaults
            to the Keras mask of `decoder_sequence`. Wrappers such as
            `keras.layers.TimeDistributed` pass it by this name.

    Returns:
        `outputs` `(batch, target_length, hidden_dim)`. With caches,
        `(outputs, self_attention_cache)` without cross-attention and
        `(outputs, self_attention_cache, cross_attention_cache)` with it; each is a
        list of the caches of the blocks. With `return_attention_scores=True`, a list
        of the dictionary of scores of each block is the last element (see
        `DecoderBlock`).

    Raises:
        ValueError: if an argument is out of range, `num_heads` does not divide
            `hidden_dim`, `sliding_window` has another number of entries than there are
            blocks, or `encoder_sequence` or a cache does not match the way the
            stack was built.

    Example:

    >>> decoder = DecoderStack(num_layers=2, intermediate_dim=16, num_heads=2)
    >>> target = np.ones((3, 5, 8), "float32")
    >>> source = np.ones((3, 7, 8), "float32")
    >>> tuple(decoder(target, source).shape)
    (3, 5, 8)
    >>> decoder_only = DecoderStack(num_layers=2, intermediate_dim=16, num_heads=2)
    >>> tuple(decoder_only(target).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
        - [Huang et al., 2016](https://arxiv.org/abs/1603.09382) (stochastic depth)
    """

    block_class = DecoderBlock

    def build(
        self,
        decoder_sequence_shape: Shape,
        encoder_sequence_shape: Shape | None = None,
    ) -> None:
        self._build_blocks(decoder_sequence_shape, encoder_sequence_shape)

    def call(
        self,
        decoder_sequence: Tensor,
        encoder_sequence: Tensor | None = None,
        decoder_padding_mask: Mask | None = None,
        decoder_attention_mask: Mask | None = None,
        encoder_padding_mask: Mask | None = None,
        encoder_attention_mask: Mask | None = None,
        self_attention_cache: Sequence[Cache] | None = None,
        self_attention_cache_update_index: Size | None = None,
        cross_attention_cache: Sequence[Cache] | None = None,
        cross_attention_cache_update_index: Size | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Tensor | None = None,
        cache_positions: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Any:
        check_embedded(self, decoder_sequence, encoder_sequence)
        self_caches = self._per_block("self_attention_cache", self_attention_cache)
        cross_caches = self._per_block("cross_attention_cache", cross_attention_cache)
        source = () if encoder_sequence is None else (encoder_sequence,)
        options: Options = {
            "decoder_padding_mask": decoder_padding_mask,
            "decoder_attention_mask": decoder_attention_mask,
            "encoder_padding_mask": encoder_padding_mask,
            "encoder_attention_mask": encoder_attention_mask,
            "self_attention_cache_update_index": self_attention_cache_update_index,
            "cross_attention_cache_update_index": cross_attention_cache_update_index,
            "use_causal_mask": use_causal_mask,
            "training": training,
            "positions": positions,
            "cache_positions": cache_positions,
            "mask": mask,
        }
        has_no_cache = self_attention_cache is None and cross_attention_cache is None
        if has_no_cache and not return_attention_scores:
            x = self._call_blocks(decoder_sequence, *source, **options)
            return self._normalize(x)
        x, extras = decoder_sequence, []
        for block, self_cache, cross_cache in zip(
            self.blocks, self_caches, cross_caches, strict=True
        ):
            x, *block_extras = self._call_block(
                block,
                x,
                *source,
                self_attention_cache=self_cache,
                cross_attention_cache=cross_cache,
                return_attention_scores=return_attention_scores,
                **options,
            )
            extras.append(block_extras)
        # One list for each kind of output: self- and cross-attention caches, scores.
        lists = [list(kind) for kind in zip(*extras, strict=True)]
        return (self._normalize(x), *lists)

    def _per_block(
        self, name: str, caches: Sequence[Cache] | None
    ) -> Sequence[Cache | None]:
        if caches is None:
            return [None] * self.num_layers
        is_list = isinstance(caches, list | tuple) and not isinstance(caches, KeyValues)
        if not is_list or len(caches) != self.num_layers:
            received = f"{len(caches)} caches" if is_list else f"one {type(caches)}"
            raise ValueError(
                f"`{name}` must be a list with the cache of each of the "
                f"{self.num_layers} blocks; received {received}."
            )
        return caches

    def compute_output_shape(
        self,
        decoder_sequence_shape: Shape,
        encoder_sequence_shape: Shape | None = None,
    ) -> Shape:
        return decoder_sequence_shape

    def step(
        self,
        decoder_sequence: Tensor,
        caches: Sequence[tuple[KeyValues, ...]],
        cache_update_index: Size,
        attention_mask: Mask,
        encoder_padding_mask: Mask | None = None,
        positions: Tensor | None = None,
        cache_positions: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Decodes the newest tokens with the keys and values of earlier tokens.

        Args:
            decoder_sequence: float tensor `(batch, queries, hidden_dim)`, the
                newest tokens: one for each beam.
            caches: caches of each block, from `empty_caches` or the previous step.
            cache_update_index: int32 scalar tensor, the entry of the self-attention
                caches where the new keys and values are written.
            attention_mask: boolean tensor `(batch, queries, cache_length)`, the
                cache entries that each query attends to.
            encoder_padding_mask: boolean tensor `(batch, source_length)`.
            positions: int tensor `(queries,)` or `(batch, queries)`, positions of
                the newest tokens.
            cache_positions: int tensor `(cache_length,)` or
                `(batch, cache_length)`, positions of the entries of the
                self-attention caches.
            return_attention_scores: bool, whether to return the attention scores of
                the last block too.

        Returns:
            The outputs `(batch, queries, hidden_dim)` and the updated caches. With
            `return_attention_scores=True`, also the dictionary of scores of the last
            block (see `DecoderBlock`).
        """
        x, updated, scores = decoder_sequence, [], []
        for block, (self_cache, *cross_cache) in zip(self.blocks, caches, strict=True):
            x, *extras = block(
                x,
                decoder_attention_mask=attention_mask,
                encoder_padding_mask=encoder_padding_mask,
                self_attention_cache=self_cache,
                self_attention_cache_update_index=cache_update_index,
                cross_attention_cache=cross_cache[0] if cross_cache else None,
                use_causal_mask=False,
                training=False,
                positions=positions,
                cache_positions=cache_positions,
                return_attention_scores=(
                    return_attention_scores and block is self.blocks[-1]
                ),
            )
            num_caches = 1 + len(cross_cache)
            updated.append(tuple(extras[:num_caches]))
            scores = extras[num_caches:]
        return self._normalize(x), updated, *scores

    def empty_caches(
        self,
        encoder_sequence: Tensor | None,
        cache_length: Size,
        batch_size: Size | None = None,
    ) -> list[tuple[KeyValues, ...]]:
        """Creates the caches for the first `step`.

        Args:
            encoder_sequence: float tensor `(batch, source_length, encoder_dim)`, or
                `None` for a stack without cross-attention.
            cache_length: int or int scalar tensor, number of entries of the
                self-attention caches.
            batch_size: int or int scalar tensor, required without an
                `encoder_sequence`.

        Returns:
            list of the caches of each block: a tuple of empty `KeyValues` for the
            self-attention and, with cross-attention, the `KeyValues` of
            `encoder_sequence`.

        Raises:
            ValueError: if `encoder_sequence` does not match the way the stack was
                built, or `batch_size` is missing.
        """
        is_decoder_only = self.blocks[0].cross_attention is None
        if is_decoder_only != (encoder_sequence is None):
            raise ValueError(
                "`encoder_sequence` must be `None` exactly if the stack was built "
                "without it; received "
                f"{'no' if encoder_sequence is None else 'an'} `encoder_sequence` for "
                f"a stack {'without' if is_decoder_only else 'with'} cross-attention."
            )
        if encoder_sequence is not None:
            batch_size = ops.shape(encoder_sequence)[0]
        if batch_size is None:
            raise ValueError(
                "`batch_size` must be given without an `encoder_sequence`; received "
                "`batch_size=None`."
            )
        caches = []
        for block in self.blocks:
            cache: tuple[KeyValues, ...] = (
                block.self_attention.empty_key_values(batch_size, cache_length),
            )
            if encoder_sequence is not None:
                cross_attention = block.cross_attention
                cache += (cross_attention.compute_key_values(encoder_sequence),)
            caches.append(cache)
        return caches
