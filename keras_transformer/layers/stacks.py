"""The encoder and the decoder: stacks of blocks."""

from typing import Any

import keras

from keras_transformer.arguments import check_ints, check_rates
from keras_transformer.backend.rematerialization import rematerialized_call
from keras_transformer.layers.block import deserialize_design, serialize_design
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.freezing import freeze_new_layers
from keras_transformer.layers.positions.scheme import PositionScheme, keep_untracked
from keras_transformer.layers.residual import make_normalization


class _Stack(keras.layers.Layer):
    """What both stacks share: equal blocks and, with pre-norm, a last norm."""

    def __init__(
        self,
        num_layers: int,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        positions: PositionScheme | None = None,
        attention_options: dict[str, Any] | None = None,
        feed_forward_options: dict[str, Any] | None = None,
        residual_options: dict[str, Any] | None = None,
        rematerialize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(
            1,
            num_layers=num_layers,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
        )
        check_rates(dropout=dropout)
        self.num_layers = num_layers
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        keep_untracked(self, positions)
        self.attention_options = attention_options or {}
        self.feed_forward_options = feed_forward_options or {}
        self.residual_options = residual_options or {}
        self.rematerialize = rematerialize
        self.supports_masking = True

    def _build_stack(self, block_class: Any, *shapes: Any) -> None:
        self.blocks = [self._block(block_class, i) for i in range(self.num_layers)]
        for block in self.blocks:
            block.build(*shapes)
        residual = self.blocks[-1].feed_forward_residual
        self.norm = None
        if residual.normalize_first:
            self.norm = make_normalization(
                residual.normalization, residual.layer_norm_epsilon, self.dtype_policy
            )
        if self.norm is not None:
            self.norm.build(shapes[0])
        freeze_new_layers(self)

    def _block(self, block_class: Any, layer: int) -> Any:
        """Makes a block; the deeper it lies, the likelier stochastic depth drops it."""
        residual_options = dict(self.residual_options)
        if "stochastic_depth" in residual_options:
            residual_options["stochastic_depth"] *= (layer + 1) / self.num_layers
        encoded = self.positions is not None and self.positions.added_to_inputs
        return block_class(
            **self._settings(),
            positions=None if encoded and layer > 0 else self.positions,
            attention_options=self.attention_options,
            feed_forward_options=self.feed_forward_options,
            residual_options=residual_options,
            dtype=self.dtype_policy,
            name=f"block_{layer}",
        )

    def _call_blocks(
        self, x: Any, *others: Any, return_attention_scores: bool, **options: Any
    ) -> Any:
        options["return_attention_scores"] = return_attention_scores
        scores = []
        for block in self.blocks:
            x = self._call_block(block, x, *others, **options)
            if return_attention_scores:
                x, block_scores = x
                scores.append(block_scores)
        x = self._finish(x)
        return (x, scores) if return_attention_scores else x

    def _call_block(
        self, block: Any, *inputs: Any, training: bool | None, **options: Any
    ) -> Any:
        if self.rematerialize and training:
            return rematerialized_call(block, *inputs, training=training, **options)
        return block(*inputs, training=training, **options)

    # By tracing, so that scores are there too.
    compute_output_spec = keras.Operation.compute_output_spec

    def _finish(self, x: Any) -> Any:
        return x if self.norm is None else self.norm(x)

    def _settings(self) -> dict[str, Any]:
        return {
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
        }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            **self._settings(),
            "activation": keras.activations.serialize(self.activation),
            "rematerialize": self.rematerialize,
            **serialize_design(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "_Stack":
        """Makes the stack whose `get_config()` is `config`."""
        return cls(**deserialize_design(config))


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderStack(_Stack):
    """`num_layers` encoder blocks; with pre-norm, one last normalisation.

    Args:
        num_layers: int, number of blocks (N in the paper).
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads.
        dropout: float in [0, 1), dropout rate inside the blocks.
        activation: activation of the feed-forward networks.
        layer_norm_epsilon: float, epsilon of the layer normalisations.
        normalize_first: whether the blocks are pre-norm.
        positions: a `PositionScheme` to copy: an encoding is added to the
            inputs of the first block, any other scheme acts in the
            self-attention of every block, each with weights of its own.
        attention_options: dictionary of further arguments of every
            `MultiHeadAttention` (see the blocks).
        feed_forward_options: dictionary of further arguments of every
            `FeedForward`.
        residual_options: dictionary of further arguments of every `Residual`.
            `stochastic_depth` is the rate of the last block; it rises linearly
            from the first, as in section 3 of Huang et al., 2016.
        rematerialize: whether training keeps the inputs of the blocks alone and
            computes what is in them again for the gradient: less memory, about
            a third more computation.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        padding_mask: boolean tensor `(batch, length)`, `True` = a real token.
        training: whether dropout is applied.
        return_attention_scores: whether to return the scores as well.

    Returns:
        Tensor `(batch, length, hidden_dim)`; with
        `return_attention_scores=True` the pair of it and a list of the blocks'
        scores, each `(batch, num_heads, length, length)`.

    Example:

    >>> encoder = EncoderStack(num_layers=2, intermediate_dim=16, num_heads=2)
    >>> tuple(encoder(np.ones((3, 5, 8), "float32")).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
    """

    def build(self, inputs_shape: Any) -> None:
        self._build_stack(EncoderBlock, inputs_shape)

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        return self._call_blocks(
            inputs,
            padding_mask=padding_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderStack(_Stack):
    """`num_layers` decoder blocks; with pre-norm, one last normalisation.

    Args:
        num_layers: int, number of blocks (N in the paper).
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads.
        dropout: float in [0, 1), dropout rate inside the blocks.
        activation: activation of the feed-forward networks.
        layer_norm_epsilon: float, epsilon of the layer normalisations.
        normalize_first: whether the blocks are pre-norm.
        positions: a `PositionScheme` to copy: an encoding is added to the
            inputs of the first block, any other scheme acts in the
            self-attention of every block, each with weights of its own.
        attention_options: dictionary of further arguments of every
            `MultiHeadAttention` (see the blocks).
        feed_forward_options: dictionary of further arguments of every
            `FeedForward`.
        residual_options: dictionary of further arguments of every `Residual`.
            `stochastic_depth` is the rate of the last block; it rises linearly
            from the first, as in section 3 of Huang et al., 2016.
        rematerialize: whether training keeps the inputs of the blocks alone and
            computes what is in them again for the gradient: less memory, about
            a third more computation.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        decoder_sequence: float tensor `(batch, target_length, hidden_dim)`.
        encoder_sequence: float tensor `(batch, source_length, hidden_dim)`.
        encoder_padding_mask: boolean tensor `(batch, source_length)`.
        training: whether dropout is applied.
        return_attention_scores: whether to return the scores as well.

    Returns:
        Tensor `(batch, target_length, hidden_dim)`; with
        `return_attention_scores=True` the pair of it and a list with the
        dictionary of scores of each block (see `DecoderBlock`).

    Example:

    >>> decoder = DecoderStack(num_layers=2, intermediate_dim=16, num_heads=2)
    >>> target = np.ones((3, 5, 8), "float32")
    >>> source = np.ones((3, 7, 8), "float32")
    >>> tuple(decoder(target, source).shape)
    (3, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1
    """

    def build(self, decoder_sequence_shape: Any, encoder_sequence_shape: Any) -> None:
        self._build_stack(DecoderBlock, decoder_sequence_shape, encoder_sequence_shape)

    def call(
        self,
        decoder_sequence: Any,
        encoder_sequence: Any,
        encoder_padding_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        return self._call_blocks(
            decoder_sequence,
            encoder_sequence,
            encoder_padding_mask=encoder_padding_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def compute_output_shape(
        self, decoder_sequence_shape: Any, encoder_sequence_shape: Any
    ) -> Any:
        return decoder_sequence_shape

    def step(
        self,
        decoder_sequence: Any,
        caches: list[tuple[Any, Any]],
        cache_update_index: Any,
        attention_mask: Any,
        encoder_padding_mask: Any = None,
        positions: Any = None,
        cache_positions: Any = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Decodes the newest tokens, with what came before them in caches.

        Args:
            decoder_sequence: float tensor `(batch, queries, hidden_dim)`, the
                newest tokens: one of each beam.
            caches: for each block the `KeyValues` of its self-attention, of
                `cache_length` entries, and those of the source; from `empty_caches`
                or the step before.
            cache_update_index: int32 scalar tensor, where in the self-attention
                cache the new keys and values go.
            attention_mask: boolean tensor `(batch, queries, cache_length)`, the
                cache entries each query attends to.
            encoder_padding_mask: boolean tensor `(batch, source_length)`.
            positions: int tensor `(queries,)`, those of the newest tokens.
            cache_positions: int tensor `(cache_length,)`, those of the entries of
                the self-attention cache.
            return_attention_scores: whether to return those of the last block.

        Returns:
            The outputs `(batch, queries, hidden_dim)` and the updated caches; with
            `return_attention_scores=True` also the dictionary of scores of the last
            block (see `DecoderBlock`).
        """
        x, updated, last = decoder_sequence, [], self.blocks[-1]
        for block, (self_cache, cross_cache) in zip(self.blocks, caches, strict=True):
            wanted = return_attention_scores and block is last
            x, self_cache, cross_cache, *scores = block(
                x,
                decoder_attention_mask=attention_mask,
                encoder_padding_mask=encoder_padding_mask,
                self_attention_cache=self_cache,
                self_attention_cache_update_index=cache_update_index,
                cross_attention_cache=cross_cache,
                use_causal_mask=False,
                training=False,
                positions=positions,
                cache_positions=cache_positions,
                return_attention_scores=wanted,
            )
            updated.append((self_cache, cross_cache))
        return self._finish(x), updated, *scores

    def empty_caches(
        self, encoder_sequence: Any, cache_length: Any
    ) -> list[tuple[Any, Any]]:
        """Makes the caches for the first `step`.

        Args:
            encoder_sequence: float tensor `(batch, source_length, hidden_dim)`.
            cache_length: int or int scalar tensor, entries of the
                self-attention caches.

        Returns:
            For each block empty `KeyValues` for its self-attention, and those of
            the source.
        """
        caches = []
        for block in self.blocks:
            source = block.cross_attention.compute_key_values(encoder_sequence)
            caches.append((source.empty(cache_length), source))
        return caches
