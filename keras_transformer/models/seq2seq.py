"""The encoder-decoder Transformer."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import keras
from keras import ops

from keras_transformer.inference.sequence_model import SequenceInputs
from keras_transformer.inference.source_arrays import (
    ArraySpec,
    Sources,
    embed_arrays,
    spec_of_layer,
)
from keras_transformer.layers import (
    DecoderStack,
    EncoderStack,
    PositionalEncoding,
    PositionScheme,
    padding_mask,
)
from keras_transformer.layers.activations import Activation
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.layers.masking import move_padding_back, move_padding_to_end
from keras_transformer.layers.positions.scheme import Positions, position_pair
from keras_transformer.layers.sub_layers import Initializer
from keras_transformer.models.beam_mask import add_newest
from keras_transformer.models.transformer_model import OutputState, TransformerModel
from keras_transformer.models.vocabularies import (
    check_array_sources,
    check_length_ratio,
    check_limit,
    find_sizes,
    find_target_size,
)
from keras_transformer.types import (
    Config,
    Mask,
    Options,
    Size,
    Tensor,
    TokenIds,
)
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.presets import PRESETS

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class AttentionScores(TypedDict):
    """Attention scores of a call, a tensor for each layer."""

    encoder: list[Tensor]  # (batch, num_heads, source_length, source_length)
    decoder: list[Tensor]  # (batch, num_heads, target_length, target_length)
    cross: list[Tensor]  # (batch, num_heads, target_length, source_length)


class OutputsWithScores(NamedTuple):
    """The outputs of a call with `return_attention_scores=True`."""

    logits: Tensor
    attention_scores: AttentionScores


class Seq2SeqState(OutputState, total=False):
    """The state of decoding."""

    caches: list[tuple[KeyValues, ...]]  # of each block: of all beams, of the sources
    beam_mask: Mask  # bool (batch, num_beams, entries): the histories
    source_mask: Mask  # bool (batch, source_length), the real tokens
    # float32 (batch, num_beams, source_length), of the newest tokens: a mean over the
    # heads of the last block
    attention: Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class Seq2Seq(TransformerModel):
    """Encoder-decoder Transformer, from token ids (or text) to token ids.

    It consists of token embeddings times √hidden_dim plus sinusoidal positions, a
    stack of encoder blocks, a stack of decoder blocks, and a linear layer to the
    logits. It is a Keras model; `generate` decodes, and `export` writes it for other
    software.

    The padding masks are computed from the token ids: padding equals `pad_token_id`.
    A `stochastic_depth` in `residual_options` is the rate of the last blocks; the rates
    of the blocks rise linearly.

    Args:
        num_layers: int, number of blocks in the encoder and in the decoder (N in
            the paper).
        num_decoder_layers: int, number of blocks in the decoder; `num_layers` if
            `None`. Fewer blocks decode faster.
        hidden_dim: int, width of the model (d_model).
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads. It must divide `hidden_dim`,
            unless `attention_options` contains `key_dim`.
        vocabulary_size: int, size of one vocabulary shared by source and
            target, or of the target alone with `source_embedding`. Not needed with
            tokenizers.
        source_vocabulary_size: int, size of a separate vocabulary of the source.
        target_vocabulary_size: int, size of a separate vocabulary of the target.
        tie_embeddings: the matrices that share their weights: `"all"` (source
            embedding, target embedding, output), `"inputs"` (both embeddings),
            `"target"` (target embedding and output) or `"none"`. `None` = `"all"` with
            a shared vocabulary, `"target"` with two.
        scale_embeddings: bool, whether token embeddings are multiplied by √hidden_dim,
            as in the paper.
        output_bias: whether the logits have a bias: bool, or `"frozen"` for a bias that
            is not trained, such as one that excludes tokens. `None` = only with
            `tie_embeddings="none"` or `"inputs"`.
        dropout: float in [0, 1), dropout rate of embeddings, attention scores
            and sub-layer outputs (P_drop).
        activation: activation of the feed-forward networks.
        normalize_first: bool, whether to normalise the input of each sub-layer
            (pre-norm) instead of its output (post-norm).
        layer_norm_epsilon: float, epsilon of the normalisations.
        positions: a `PositionScheme`, copied for the encoder and the decoder, or a pair
            of them, one for each: an encoding is added to the embeddings, any other
            scheme is applied in every self-attention. `PositionalEncoding()` if
            `None`; a `None` in a pair adds none to its side. With `source_embedding`,
            a single scheme is that of the decoder.
        normalize_embeddings: bool, whether a normalisation of the type in the blocks
            follows the embeddings and their positions on both sides, as in BART.
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
        max_source_length: int, maximum length of a source in tokens, the end token
            included. `None` = the limit of `positions`, if they have one.
        max_target_length: int, maximum length of an output in tokens, the end token
            included. `None` = the limit of `positions`, if they have one.
        output_length_ratio: float >= 1, the target tokens for each source token that
            `generate` has room for if its `max_length` is `None`. `fit` raises it to
            that of the dataset of `parallel_dataset`.
        pad_token_id: int, fills short rows of a batch.
        start_token_id: int, the first input of the decoder; it may be the padding.
        end_token_id: int, ends sources and outputs; it must not be the padding. The
            target tokenizer, if there is one, determines the three ids.
        forced_first_token_id: int, the first token of every output, such as that of
            the language in M2M-100; `None` = any token. Its probability is 1.
        source_tokenizer: tokenizer of the source texts (see
            `keras_transformer.text`), saved with the model.
        target_tokenizer: tokenizer of the target texts; `source_tokenizer` if
            `None`.
        source_embedding: a Keras layer that replaces the source embedding and its
            positions, so that sources are arrays: from `(batch, ...)`, such as frames
            or pixels, to `(batch, source_length, hidden_dim)`. Its Keras mask is the
            padding mask; without one, all positions are attended to.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of `"encoder_token_ids"`, int tensor
            `(batch, source_length)`, or with `source_embedding` its inputs
            `(batch, ...)`, and `"decoder_token_ids"`, int tensor
            `(batch, target_length)`, which begins with the start token.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the scores as well.

    Returns:
        Logits `(batch, target_length, vocabulary_size)` of each next token; with
        `return_attention_scores=True` a pair of the logits and a dictionary of
        lists with one tensor for each layer: `"encoder"`
        `(batch, num_heads, source_length, source_length)`, `"decoder"`
        `(batch, num_heads, target_length, target_length)` and `"cross"`
        `(batch, num_heads, target_length, source_length)`.

    Raises:
        ValueError: if an argument is missing, out of range, or does not agree with
            another one.

    Example:

    >>> model = Seq2Seq(
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     num_heads=2,
    ...     vocabulary_size=11,
    ... )
    >>> logits = model(
    ...     {
    ...         "encoder_token_ids": np.array([[5, 6, 3]]),
    ...         "decoder_token_ids": np.array([[2, 7]]),
    ...     }
    ... )
    >>> tuple(logits.shape)
    (1, 2, 11)

    Frames `(batch, 20, 5)` in place of source tokens, two of which become a position:

    >>> frames_to_positions = keras.Sequential(
    ...     [
    ...         keras.Input((20, 5)),
    ...         keras.layers.Conv1D(8, kernel_size=2, strides=2),
    ...         LearnedPositionalEncoding(max_length=10),
    ...     ]
    ... )
    >>> model = Seq2Seq(
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     num_heads=2,
    ...     vocabulary_size=11,
    ...     source_embedding=frames_to_positions,
    ... )
    >>> frames = np.ones((3, 20, 5), "float32")
    >>> model.generate(frames, max_length=4).lengths.shape
    (3, 1)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
        - [Press and Wolf, 2017](https://arxiv.org/abs/1608.05859) (tied
          embeddings)
        - [Kasai et al., 2021](https://arxiv.org/abs/2006.10369) (few decoder
          layers)
    """

    presets = PRESETS
    input_keys = ("encoder_token_ids", "decoder_token_ids")
    returns_attention_scores = True
    config_names = (
        *("num_layers", "num_decoder_layers", "hidden_dim", "vocabulary_size"),
        *("tie_embeddings", "scale_embeddings", "normalize_embeddings"),
        *("output_bias", "max_source_length", "max_target_length"),
        *("output_length_ratio", "pad_token_id", "start_token_id", "end_token_id"),
        "forced_first_token_id",
    )

    @explains_arguments
    def __init__(
        self,
        *,
        num_layers: int,
        hidden_dim: int,
        intermediate_dim: int,
        num_heads: int,
        num_decoder_layers: int | None = None,
        vocabulary_size: int | None = None,
        source_vocabulary_size: int | None = None,
        target_vocabulary_size: int | None = None,
        tie_embeddings: str | None = None,
        scale_embeddings: bool = True,
        output_bias: bool | str | None = None,
        dropout: float = 0.1,
        activation: Activation = "relu",
        normalize_first: bool = True,
        layer_norm_epsilon: float = 1e-5,
        positions: Positions = None,
        normalize_embeddings: bool = False,
        attention_options: Options | None = None,
        feed_forward_options: Options | None = None,
        residual_options: Options | None = None,
        rematerialize: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        max_source_length: int | None = None,
        max_target_length: int | None = None,
        output_length_ratio: float = 1.0,
        pad_token_id: int = 0,
        start_token_id: int = 2,
        end_token_id: int = 3,
        forced_first_token_id: int | None = None,
        source_tokenizer: "Tokenizer | None" = None,
        target_tokenizer: "Tokenizer | None" = None,
        source_embedding: keras.layers.Layer | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, num_layers=num_layers, hidden_dim=hidden_dim)
        check_ints(0, optional=True, forced_first_token_id=forced_first_token_id)
        self.forced_first_token_id = forced_first_token_id
        check_ints(1, optional=True, num_decoder_layers=num_decoder_layers)
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers or num_layers
        self.hidden_dim = hidden_dim
        self.scale_embeddings = scale_embeddings
        self.normalize_embeddings = normalize_embeddings
        self.output_length_ratio = check_length_ratio(output_length_ratio)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.embeds_arrays = source_embedding is not None
        if self.embeds_arrays:
            check_array_sources(
                source_embedding=source_embedding,
                source_tokenizer=source_tokenizer,
                source_vocabulary_size=source_vocabulary_size,
                max_source_length=max_source_length,
                tie_embeddings=tie_embeddings,
            )
        self._set_positions(positions, max_source_length, max_target_length)
        if self.embeds_arrays:
            sizes = find_target_size(
                self.target_tokenizer, vocabulary_size, target_vocabulary_size
            )
        else:
            sizes = find_sizes(
                self.source_tokenizer,
                self.target_tokenizer,
                vocabulary_size,
                source_vocabulary_size,
                target_vocabulary_size,
            )
        self._set_vocabularies(sizes, pad_token_id, start_token_id, end_token_id)
        self._set_tying(tie_embeddings, output_bias)
        self._build_layers(
            source_embedding,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
            activation=activation,
            normalize_first=normalize_first,
            layer_norm_epsilon=layer_norm_epsilon,
            attention_options=attention_options,
            feed_forward_options=feed_forward_options,
            residual_options=residual_options,
            rematerialize=rematerialize,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            dtype=self.dtype_policy,
        )

    def _set_positions(
        self, positions: Positions, max_source: int | None, max_target: int | None
    ) -> None:
        """Sets the position schemes and the maximum lengths, which they limit."""
        positions = positions or PositionalEncoding()
        if self.embeds_arrays and isinstance(positions, PositionScheme):
            positions = None, positions
        object.__setattr__(self, "positions", positions)  # Keras does not track it.
        source, target = position_pair(positions)
        self.max_source_length = None
        if not self.embeds_arrays:
            limit = check_limit(max_source, source, "max_source_length")
            self.max_source_length = limit
        self.max_target_length = check_limit(max_target, target, "max_target_length")

    def _build_layers(
        self, source_embedding: keras.layers.Layer | None, **blocks: Any
    ) -> None:
        source_positions, target_positions = position_pair(self.positions)
        encoder = EncoderStack(
            self.num_layers,
            **blocks,
            positions=_unless_added(source_positions),
            name="encoder",
        )
        decoder = DecoderStack(
            self.num_decoder_layers,
            **blocks,
            positions=_unless_added(target_positions),
            name="decoder",
        )
        self._keep_block_arguments(decoder)
        self.target_embedding = self._make_embedding(
            "target", self.target_vocabulary_size
        )
        self.source_embedding: Any = source_embedding or self.target_embedding
        is_shared = self.tie_embeddings in ("all", "inputs")
        if source_embedding is None and not is_shared:
            self.source_embedding = self._make_embedding(
                "source", self.source_vocabulary_size
            )
        self.source_encoding = self._make_encoding(source_positions)
        self.target_encoding = self._make_encoding(target_positions)
        self.source_norm = self._make_embedding_norm()
        self.target_norm = self._make_embedding_norm()
        self.embedding_dropout = self._make_dropout()
        shape = (None, None, self.hidden_dim)
        self.encoder = encoder
        self.encoder.build(shape)
        self.decoder = decoder
        self.decoder.build(shape, shape)
        self._build_output()
        self.built = source_embedding is None or source_embedding.built

    def call(
        self,
        inputs: SequenceInputs,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | OutputsWithScores:
        options = {
            "training": training,
            "return_attention_scores": return_attention_scores,
        }
        sources, shifts = inputs["encoder_token_ids"], None
        if not self.embeds_arrays:
            sources, shifts = move_padding_to_end(sources, self.pad_token_id)
        source, source_mask = self.embed_source(sources, training)
        target = self.embed_target(inputs["decoder_token_ids"], training=training)
        encoded = self.encoder(source, padding_mask=source_mask, **options)
        if return_attention_scores:
            encoded, encoder_scores = encoded
        decoded = self.decoder(
            target, encoded, encoder_padding_mask=source_mask, **options
        )
        if not return_attention_scores:
            return self.compute_logits(decoded)
        decoded, decoder_scores = decoded
        cross_scores = [block["cross_attention"] for block in decoder_scores]
        if shifts is not None:
            encoder_scores = [
                move_padding_back(s, shifts, 2, 3) for s in encoder_scores
            ]
            cross_scores = [move_padding_back(s, shifts, 3) for s in cross_scores]
        scores: AttentionScores = {
            "encoder": encoder_scores,
            "decoder": [block["self_attention"] for block in decoder_scores],
            "cross": cross_scores,
        }
        return OutputsWithScores(self.compute_logits(decoded), scores)

    def embed_source(
        self, sources: Tensor, training: bool | None = None
    ) -> tuple[Tensor, Mask]:
        """Embeds source tokens and adds their positions.

        Args:
            sources: int tensor `(batch, source_length)`, padded at the end; or the
                inputs of `source_embedding`, if one was given.
            training: bool, whether dropout is applied.

        Returns:
            Tensor `(batch, source_length, hidden_dim)` in the compute dtype, and the
            padding mask, boolean `(batch, source_length)`.
        """
        if self.embeds_arrays:
            layer, width = self.source_embedding, self.hidden_dim
            _, x, mask = embed_arrays(layer, sources, width, training)
            x = ops.cast(x, self.compute_dtype)
        else:
            x = self._scale(self.source_embedding(sources))
            mask = padding_mask(sources, self.pad_token_id)
        if self.source_encoding is not None:
            x = self.source_encoding(x)
        if self.source_norm is not None:
            x = self.source_norm(x)
        return self.embedding_dropout(x, training=training), mask

    def encode(
        self, encoder_token_ids: TokenIds, training: bool | None = None
    ) -> Tensor:
        """Runs the encoder.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`; or arrays
                `(batch, ...)`, if the model has a `source_embedding`.
            training: bool, whether dropout is applied.

        Returns:
            Tensor `(batch, source_length, hidden_dim)` in the compute dtype.
        """
        sources, shifts = encoder_token_ids, None
        if not self.embeds_arrays:
            sources, shifts = move_padding_to_end(sources, self.pad_token_id)
        x, mask = self.embed_source(sources, training)
        encoded = self.encoder(x, padding_mask=mask, training=training)
        return encoded if shifts is None else move_padding_back(encoded, shifts, 1)

    @property
    def source_spec(self) -> ArraySpec | None:
        """The arrays that `source_embedding` takes; `None` without one."""
        return spec_of_layer(self.source_embedding) if self.embeds_arrays else None

    def prepare_sources(self, sources: Sources) -> Sources:
        """Embeds arrays; see `GenerativeModel.prepare_sources`."""
        if not self.embeds_arrays:
            return super().prepare_sources(sources)
        return embed_arrays(self.source_embedding, sources, self.hidden_dim)

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> Seq2SeqState:
        """Encodes the sources; see `GenerativeModel.start_decoding`."""
        x, mask = self.embed_source(encoder_token_ids, training=False)
        encoded = self.encoder(x, padding_mask=mask, training=False)
        batch, source_length = ops.shape(mask)
        entries = max_length * num_beams
        state: Seq2SeqState = {
            "caches": self.decoder.empty_caches(encoded, entries),
            "beam_mask": ops.zeros((batch, num_beams, entries), "bool"),
            "source_mask": mask,
            **self._output_state(),
        }
        if return_attention:
            shape = (batch, num_beams, source_length)
            state["attention"] = ops.zeros(shape, "float32")
        return state

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: Seq2SeqState
    ) -> tuple[Tensor, Seq2SeqState]:
        """Computes the logits of the next tokens; see `GenerativeModel.decode_step`."""
        # The beams are the queries of one attention: see `models/beam_mask.py`.
        beam_mask = state["beam_mask"]
        num_beams, entries = beam_mask.shape[1], ops.shape(beam_mask)[2]
        entry = index * num_beams
        beam_mask = add_newest(beam_mask, entry)
        positions = ops.broadcast_to(index, (num_beams,))
        indices = ops.arange(entries, dtype="int32")
        x = self.embed_target(token_ids, positions, training=False)
        x, caches, *scores = self.decoder.step(
            x,
            state["caches"],
            entry,
            attention_mask=beam_mask,
            encoder_padding_mask=state["source_mask"],
            positions=positions,
            cache_positions=ops.floor_divide(indices, num_beams),
            return_attention_scores="attention" in state,
        )
        state = {**state, "caches": caches, "beam_mask": beam_mask}
        if scores:
            attention = ops.cast(scores[0]["cross_attention"], "float32")
            state["attention"] = ops.mean(attention, axis=1)
        logits = self.compute_logits(x, state.get("output_kernel"))
        return self._force_first_token(logits, index), state

    def _force_first_token(self, logits: Tensor, index: Tensor) -> Tensor:
        """Excludes all other tokens from the first step."""
        if self.forced_first_token_id is None:
            return logits
        tokens = ops.arange(self.target_vocabulary_size)
        forced = ops.where(ops.equal(tokens, self.forced_first_token_id), 0.0, -3e4)
        forced = ops.cast(forced, logits.dtype)
        return ops.where(ops.equal(index, 0), forced, logits)

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Computes the attention to the source; see `GenerativeModel`."""
        inputs: SequenceInputs = {
            "encoder_token_ids": encoder_token_ids,
            "decoder_token_ids": decoder_token_ids,
        }
        count = self.num_decoder_layers
        if layer is None:
            layer = max(count - 2, 0)
        elif not -count <= layer < count:
            raise ValueError(
                f"`layer` must be from {-count} to {count - 1}, since the decoder has "
                f"{count} layers; received `layer={layer}`."
            )
        _, scores = self(inputs, training=False, return_attention_scores=True)
        return ops.mean(ops.cast(scores["cross"][layer], "float32"), axis=1)

    def get_config(self) -> Config:
        config = super().get_config()
        if self.embeds_arrays:
            serialized = keras.saving.serialize_keras_object(self.source_embedding)
            config["source_embedding"] = serialized
        if self.vocabulary_size is None:
            config["source_vocabulary_size"] = self.source_vocabulary_size or None
            config["target_vocabulary_size"] = self.target_vocabulary_size
        return config


def _unless_added(scheme: PositionScheme | None) -> PositionScheme | None:
    """Returns the scheme of the blocks: one that is not added to the embeddings."""
    return None if scheme is None or scheme.added_to_inputs else scheme
