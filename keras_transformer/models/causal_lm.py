"""The decoder-only Transformer: a language model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict

import keras
from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.decoding.lengths import smaller
from keras_transformer.inference.protocols import SequenceInputs
from keras_transformer.layers import (
    DecoderStack,
    PositionalEncoding,
    PositionScheme,
    padding_mask,
)
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.block_arguments import (
    BlockArguments,
    deserialize_objects,
)
from keras_transformer.layers.masking import align_rows, restore_order
from keras_transformer.models.decoder_only import DecoderOnly, prompt_lengths
from keras_transformer.models.file_checks import check_fits_memory
from keras_transformer.models.vocabularies import (
    check_length_ratio,
    check_limit,
    check_tying,
    find_sizes,
    find_special_ids,
)
from keras_transformer.training.token_trainer import TokenTrainer
from keras_transformer.types import Config, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.presets import PRESETS

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class PackedTexts(TypedDict):
    """Rows of several texts each.

    Attributes:
        token_ids: int32 tensor `(batch, length)`.
        segment_ids: int32 tensor `(batch, length)`, the number of the text of each
            token. It never decreases along a row.
    """

    token_ids: TokenIds
    segment_ids: Tensor


class _Rows(NamedTuple):
    """The inputs of the decoder.

    Attributes:
        token_ids: int tensor `(batch, length)`.
        positions: int tensor `(batch, length)`; `None` = from 0.
        mask: boolean tensor `(batch, length, length)`; `None` = all earlier tokens.
        shifts: int tensor `(batch, 1)`, the padding that `align_rows` has moved.
        outputs: int tensor `(batch, target_length)`, the positions of the outputs;
            `None` = all.
    """

    token_ids: TokenIds
    positions: Tensor | None = None
    mask: Tensor | None = None
    shifts: Tensor | None = None
    outputs: Tensor | None = None


@keras.saving.register_keras_serializable("keras_transformer")
class CausalLM(BlockArguments, DecoderOnly, TokenTrainer):
    """Decoder-only Transformer: predicts the next token of a text.

    It consists of token embeddings times √hidden_dim plus sinusoidal positions, a
    stack of decoder blocks without cross-attention, and a linear layer to the logits.
    It is a Keras model with `compile`, `fit`, `evaluate`, `predict` and `save`.
    `generate` continues prompts, `score` and `score_texts` compute log-probabilities,
    and `export` writes it for other software.

    The source of `generate`, `score` and the other functions is the prompt, and the
    target is its continuation. Prompts of different lengths form one batch: each row
    has its own positions, and its output does not depend on the other rows.

    Args:
        num_layers: int, number of blocks.
        hidden_dim: int, width of the model (d_model).
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads. It must divide `hidden_dim`,
            unless `attention_options` contains `key_dim`.
        vocabulary_size: int, size of the vocabulary. Not needed with a tokenizer.
        tie_embeddings: bool, whether the embedding is the matrix of the logits too.
        scale_embeddings: bool, whether token embeddings are multiplied by √hidden_dim.
        output_bias: bool or `None`, whether the logits have a bias. `None` = only
            without `tie_embeddings`.
        dropout: float in [0, 1), dropout rate of embeddings, attention scores
            and sub-layer outputs.
        activation: activation of the feed-forward networks.
        normalize_first: bool, whether to normalise the input of each sub-layer
            (pre-norm) instead of its output (post-norm).
        layer_norm_epsilon: float, epsilon of the normalisations.
        positions: a `PositionScheme`: an encoding is added to the embeddings, any
            other scheme is applied in every self-attention. `PositionalEncoding()` if
            `None`.
        normalize_embeddings: bool, whether a normalisation of the type in the blocks
            follows the embeddings and their positions, as in BLOOM.
        attention_options: dictionary of further arguments of each
            `MultiHeadAttention`, such as `num_key_value_heads`, `pattern` or
            `sliding_window`.
        feed_forward_options: dictionary of further arguments of each
            `FeedForward`, such as `gated` or a separate `dropout`.
        residual_options: dictionary of further arguments of each `Residual`, such
            as `normalization` or `stochastic_depth`.
        rematerialize: bool, whether training recomputes the activations inside the
            blocks for the gradient instead of storing them.
        kernel_initializer: initializer of all attention and feed-forward kernels.
        bias_initializer: initializer of all attention and feed-forward biases.
        max_length: int, maximum number of tokens that the model attends to: those of
            a prompt and of its continuation, whose last token is not an input. `None`
            = the limit of `positions`, if it has one.
        output_length_ratio: float >= 1, the target tokens for each source token that
            `generate` has room for if its `max_length` is `None`. `fit` raises it to
            that of the dataset of `parallel_dataset`.
        pad_token_id: int, fills short rows of a batch.
        start_token_id: int, the first token of a text; it may be the end token.
        end_token_id: int, ends texts; it must not be the padding. The tokenizer, if
            there is one, determines the three ids.
        tokenizer: tokenizer of the texts (see `keras_transformer.text`), saved with
            the model.
        add_start_token: bool, whether every prompt that is a text begins with the
            start token. Pass `True` if a prompt is always the beginning of a document,
            such as a name or a question. `False` = a prompt can be any part of a text;
            only an empty prompt is the start token.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: one of
            - int tensor `(batch, length)`: texts, padded at the end or at the
              start;
            - dictionary of `"token_ids"` and `"segment_ids"`, int tensors
              `(batch, length)`: several texts in a row, which do not attend to each
              other; the positions of each text begin at 0;
            - dictionary of `"encoder_token_ids"`, int tensor `(batch, prompt_length)`,
              the prompts, and `"decoder_token_ids"`, int tensor
              `(batch, target_length)`, their continuations after the start token, as
              `parallel_dataset` yields. The start token stands for the last token of
              the prompt. The logits of tokens for which `max_length` has no room are
              NaN.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the scores as well.

    Returns:
        Logits of each next token, `(batch, length, vocabulary_size)`, for prompts and
        continuations `(batch, target_length, vocabulary_size)`. With
        `return_attention_scores=True` a pair of the logits and a list of tensors
        `(batch, num_heads, length, length)`, one for each layer.

    Raises:
        ValueError: if an argument is missing, out of range, or does not agree with
            another one.

    Example:

    >>> model = CausalLM(
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     num_heads=2,
    ...     vocabulary_size=11,
    ... )
    >>> tuple(model(np.array([[2, 5, 6, 7]])).shape)
    (1, 4, 11)
    >>> model.generate([[2, 5], [2, 5, 6, 7]], max_length=3).token_ids.shape
    (2, 1, 3)

    References:
        - [Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
          (GPT-2)
        - [Liu et al., 2018](https://arxiv.org/abs/1801.10198) (decoder-only
          Transformer)
    """

    presets = PRESETS
    tokenizer_arguments = {"tokenizer.json": "tokenizer"}
    positions: PositionScheme

    @explains_arguments
    def __init__(
        self,
        *,
        num_layers: int,
        hidden_dim: int,
        intermediate_dim: int,
        num_heads: int,
        vocabulary_size: int | None = None,
        tie_embeddings: bool = True,
        scale_embeddings: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.1,
        activation: Any = "relu",
        normalize_first: bool = True,
        layer_norm_epsilon: float = 1e-5,
        positions: PositionScheme | None = None,
        normalize_embeddings: bool = False,
        attention_options: dict[str, Any] | None = None,
        feed_forward_options: dict[str, Any] | None = None,
        residual_options: dict[str, Any] | None = None,
        rematerialize: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        max_length: int | None = None,
        output_length_ratio: float = 1.0,
        pad_token_id: int = 0,
        start_token_id: int = 2,
        end_token_id: int = 3,
        tokenizer: "Tokenizer | None" = None,
        add_start_token: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, num_layers=num_layers, hidden_dim=hidden_dim)
        check_ints(
            1, optional=True, vocabulary_size=vocabulary_size, max_length=max_length
        )
        self.set_block_arguments(
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            normalize_first=normalize_first,
            positions=positions or PositionalEncoding(),
            attention_options=attention_options,
            feed_forward_options=feed_forward_options,
            residual_options=residual_options,
        )
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.rematerialize = rematerialize
        limit = check_limit(max_length, self.positions, "max_length")
        self.max_length = self.max_source_length = self.max_target_length = limit
        self.output_length_ratio = check_length_ratio(output_length_ratio)
        self.tokenizer = self.source_tokenizer = self.target_tokenizer = tokenizer
        self.add_start_token = add_start_token
        self.normalize_embeddings = normalize_embeddings
        sizes = find_sizes(tokenizer, tokenizer, vocabulary_size, None, None)
        self.vocabulary_size = sizes.target
        self.source_vocabulary_size = self.target_vocabulary_size = sizes.target
        given = pad_token_id, start_token_id, end_token_id
        special_ids = find_special_ids(tokenizer, tokenizer, given, *sizes[1:])
        self.pad_token_id, self.start_token_id, self.end_token_id = special_ids
        if self.start_token_id == self.pad_token_id:
            raise ValueError(
                "`start_token_id` must not be `pad_token_id`, since an empty prompt is "
                f"the start token; received {self.start_token_id} for both."
            )
        self.empty_source = (self.start_token_id,)
        if tokenizer is not None:
            from keras_transformer.text import PromptTokenizer

            self.source_tokenizer = PromptTokenizer(tokenizer, add_start_token)
        self.tie_embeddings = check_tying("all" if tie_embeddings else "none", True)
        self.scale_embeddings = scale_embeddings
        self.output_bias = not tie_embeddings if output_bias is None else output_bias
        self._build_layers()
        self._cache_compiled_functions()

    def _build_layers(self) -> None:
        shape, policy = (None, None, self.hidden_dim), self.dtype_policy
        self.target_embedding = self._embedding("token", self.vocabulary_size)
        self.encoding = self._encoding(self.positions)
        self.embedding_norm = self._embedding_norm()
        positions = None if self.positions.added_to_inputs else self.positions
        self.embedding_dropout = keras.layers.Dropout(self.dropout, dtype=policy)
        self.embedding_dropout.build(shape)
        self.decoder = DecoderStack(
            self.num_layers,
            **{**self.get_block_arguments(), "positions": positions},
            rematerialize=self.rematerialize,
            dtype=policy,
            name="decoder",
        )
        self.decoder.build(shape)
        self._build_output(shape)
        self.built = True

    def call(
        self,
        inputs: TokenIds | PackedTexts | SequenceInputs,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        token_ids, positions, mask, shifts, outputs = self._parse(inputs)
        x = self.embed_target(token_ids, positions, training)
        found = self.decoder(
            x,
            decoder_attention_mask=mask,
            positions=positions,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        x, *scores = found if return_attention_scores else (found,)
        if shifts is not None:
            x = restore_order(x, shifts, 1)
        if outputs is not None:
            last = ops.shape(x)[1] - 1
            places = ops.minimum(outputs, last)[:, :, None]
            x = ops.take_along_axis(x, places, axis=1)
            x = ops.where(outputs[:, :, None] > last, float("nan"), x)
        logits = self.compute_logits(x)
        if not return_attention_scores:
            return logits
        attention = [block["self_attention"] for block in scores[0]]
        if shifts is not None:
            attention = [restore_order(block, shifts, 2, 3) for block in attention]
        return logits, attention

    def _parse(self, inputs: Any) -> "_Rows":
        if not isinstance(inputs, Mapping):
            token_ids, shifts = align_rows(inputs, self.pad_token_id)
            return _Rows(token_ids, shifts=shifts)
        if "segment_ids" in inputs:
            segments = inputs["segment_ids"]
            same = ops.equal(segments[:, :, None], segments[:, None, :])
            earlier = ops.tril(ops.cast(same, "int32"))
            positions = int32_sum(earlier, axis=2) - 1
            return _Rows(inputs["token_ids"], positions, same)
        return self._join(inputs["encoder_token_ids"], inputs["decoder_token_ids"])

    def _join(self, prompts: TokenIds, continuations: TokenIds) -> "_Rows":
        """Joins each prompt and its continuation, without padding between them."""
        prompts, _ = align_rows(prompts, self.pad_token_id)
        lengths = prompt_lengths(prompts, self.pad_token_id)[:, None]
        prompt_length, length = ops.shape(prompts)[1], ops.shape(continuations)[1]
        both = ops.concatenate([prompts, continuations[:, 1:]], axis=1)
        total = prompt_length + length - 1
        # The rest of the longest row is padding.
        joined = total if self.max_length is None else smaller(total, self.max_length)
        index = ops.arange(joined, dtype="int32")[None]
        after = ops.minimum(index - lengths + prompt_length, total - 1)
        token_ids = ops.take_along_axis(
            both, ops.where(index < lengths, index, after), axis=1
        )
        outputs = lengths - 1 + ops.arange(length, dtype="int32")[None]
        is_real = padding_mask(continuations, self.pad_token_id)
        return _Rows(token_ids, outputs=ops.where(is_real, outputs, 0))

    def embed_target(
        self,
        token_ids: TokenIds,
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embeds tokens and adds their positions.

        Args:
            token_ids: int tensor `(batch, length)`.
            positions: int tensor `(length,)` or `(batch, length)`; `None` = from 0.
            training: bool, whether dropout is applied.

        Returns:
            Tensor `(batch, length, hidden_dim)` in the compute dtype.
        """
        x = self.target_embedding(token_ids)
        if self.scale_embeddings:
            x = x * self.hidden_dim**0.5
        if self.encoding is not None:
            x = self.encoding(x, positions=positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.embedding_dropout(x, training=training)

    def get_config(self) -> Config:
        names = (
            "num_layers",
            "hidden_dim",
            "vocabulary_size",
            "scale_embeddings",
            "normalize_embeddings",
            "output_bias",
            "rematerialize",
            "max_length",
            "output_length_ratio",
            "pad_token_id",
            "start_token_id",
            "end_token_id",
            "add_start_token",
        )
        config = {**super().get_config(), **{n: getattr(self, n) for n in names}}
        config["tie_embeddings"] = self.tie_embeddings != "none"
        config.update(self.get_block_config())
        for name, tokenizer in self.own_tokenizers().items():
            config[name] = keras.saving.serialize_keras_object(tokenizer)
        return config

    def own_tokenizers(self) -> "dict[str, Tokenizer]":
        """Returns the tokenizer by its argument name.

        Returns:
            A dictionary with the key `"tokenizer"`; empty without a tokenizer.
        """
        return {} if self.tokenizer is None else {"tokenizer": self.tokenizer}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Self:
        """Creates a model from the result of `get_config`.

        Raises:
            ValueError: if the model does not fit in the memory of this machine.
        """
        check_fits_memory(config)
        config = deserialize_objects(config)
        if config.get("tokenizer") is not None:
            from keras_transformer import text  # noqa: F401 (registers tokenizers)

            config["tokenizer"] = keras.saving.deserialize_keras_object(
                config["tokenizer"], custom_objects
            )
        return cls(**config)
