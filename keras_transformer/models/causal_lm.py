"""The decoder-only Transformer: a language model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypedDict, Unpack

import keras
from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.decoding import OutputLength, Sampling, Search
from keras_transformer.decoding.generation_options import chosen_search
from keras_transformer.decoding.lengths import (
    default_lengths,
    output_lengths,
    smaller,
)
from keras_transformer.inference.alignment import Alignment
from keras_transformer.inference.constraints import Constraints
from keras_transformer.inference.request import Request
from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.inference.sequence_model import SequenceInputs
from keras_transformer.inference.text_windows import score_texts
from keras_transformer.inference.token_ids import Sequences
from keras_transformer.layers import (
    DecoderStack,
    PositionalEncoding,
    PositionScheme,
    padding_mask,
)
from keras_transformer.layers.activations import Activation
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.layers.masking import align_rows, restore_order
from keras_transformer.layers.positions.scheme import keep_untracked
from keras_transformer.layers.sub_layers import Initializer
from keras_transformer.models.beam_history import add_newest
from keras_transformer.models.tokenizer_attributes import tokenizer_attribute
from keras_transformer.models.transformer_model import OutputState, TransformerModel
from keras_transformer.models.vocabularies import (
    check_length_ratio,
    check_limit,
    find_sizes,
)
from keras_transformer.types import (
    Config,
    Mask,
    Options,
    Size,
    SizeT,
    Tensor,
    TokenIds,
)
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.engines.generation_options import SearchOptions
from keras_transformer_runtime.presets import PRESETS

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

# The maximum number of new tokens if `generate` receives none.
DEFAULT_NEW_TOKENS = 256


class PackedTexts(TypedDict):
    """Rows of several texts each."""

    token_ids: TokenIds  # int32 (batch, length)
    segment_ids: Tensor  # int32 (batch, length), the text of each token; ascending


class _Rows(NamedTuple):
    """The inputs of the decoder."""

    token_ids: TokenIds  # int (batch, length)
    positions: Tensor | None = None  # int (batch, length); None = from 0
    mask: Tensor | None = None  # bool (batch, length, length); None = causal
    shifts: Tensor | None = None  # int (batch, 1), the padding that `align_rows` moved
    outputs: Tensor | None = None  # int (batch, target_length), positions; None = all


class CausalLMState(OutputState, total=False):
    """The state of decoding.

    The first `prompt_length` entries of a cache hold the prompt, once for all beams;
    the new tokens follow. The last token of a prompt is the input of the first step, so
    its entry is in no history.
    """

    caches: list[tuple[KeyValues, ...]]  # the `KeyValues` of each decoder block
    history: Mask  # bool (batch, num_beams, entries); see `beam_history`
    prompt_mask: Mask  # bool (batch, prompt_length), without the last tokens
    last_tokens: TokenIds  # int32 (batch,), the last tokens of the prompts


@keras.saving.register_keras_serializable("keras_transformer")
class CausalLM(TransformerModel):
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
        output_bias: whether the logits have a bias: bool, or `"frozen"` for a bias that
            is not trained, such as one that excludes tokens. `None` = only
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
            `sliding_window`, which may be a list with an int or `None` for each block.
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

    tokenizer = tokenizer_attribute()
    presets = PRESETS
    tokenizer_arguments = {"tokenizer.json": "tokenizer"}
    length_arguments = ("max_length", "max_length")
    default_search: Search = Sampling(top_p=0.9)
    forces_end_token = False
    has_cross_attention = False
    config_names = (
        *("num_layers", "hidden_dim", "vocabulary_size", "scale_embeddings"),
        *("normalize_embeddings", "output_bias", "max_length", "output_length_ratio"),
        *("pad_token_id", "start_token_id", "end_token_id", "add_start_token"),
    )

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
        output_bias: bool | str | None = None,
        dropout: float = 0.1,
        activation: Activation = "relu",
        normalize_first: bool = True,
        layer_norm_epsilon: float = 1e-5,
        positions: PositionScheme | None = None,
        normalize_embeddings: bool = False,
        attention_options: Options | None = None,
        feed_forward_options: Options | None = None,
        residual_options: Options | None = None,
        rematerialize: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
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
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        positions = positions or PositionalEncoding()
        keep_untracked(self, positions)
        limit = check_limit(max_length, positions, "max_length")
        self.max_length = self.max_source_length = self.max_target_length = limit
        self.output_length_ratio = check_length_ratio(output_length_ratio)
        self.tokenizer = self.source_tokenizer = self.target_tokenizer = tokenizer
        sizes = find_sizes(tokenizer, tokenizer, vocabulary_size, None, None)
        self._set_vocabularies(sizes, pad_token_id, start_token_id, end_token_id)
        self._set_prompts(tokenizer, add_start_token)
        self._set_tying("all" if tie_embeddings else "none", output_bias)
        self.scale_embeddings = scale_embeddings
        self.normalize_embeddings = normalize_embeddings
        decoder = DecoderStack(
            num_layers,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
            activation=activation,
            normalize_first=normalize_first,
            layer_norm_epsilon=layer_norm_epsilon,
            positions=None if positions.added_to_inputs else positions,
            attention_options=attention_options,
            feed_forward_options=feed_forward_options,
            residual_options=residual_options,
            rematerialize=rematerialize,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            dtype=self.dtype_policy,
            name="decoder",
        )
        self._keep_block_arguments(decoder)
        self._build_layers(decoder)

    def _set_prompts(
        self, tokenizer: "Tokenizer | None", add_start_token: bool
    ) -> None:
        """Sets what a prompt that is a text begins with, and what an empty one is."""
        if self.start_token_id == self.pad_token_id:
            raise ValueError(
                "`start_token_id` must not be `pad_token_id`, since an empty prompt is "
                f"the start token; received {self.start_token_id} for both."
            )
        self.add_start_token = add_start_token
        self.empty_source = (self.start_token_id,)
        if tokenizer is not None:
            from keras_transformer.text import PromptTokenizer

            self.source_tokenizer = PromptTokenizer(tokenizer, add_start_token)

    def _build_layers(self, decoder: DecoderStack) -> None:
        self.target_embedding = self._make_embedding(
            "token", self.target_vocabulary_size
        )
        self.target_encoding = self._make_encoding(self.positions)
        self.target_norm = self._make_embedding_norm()
        self.embedding_dropout = self._make_dropout()
        self.decoder = decoder
        self.decoder.build((None, None, self.hidden_dim))
        self._build_output()
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

    def generate(
        self,
        inputs: Sequences,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        batch_size: int = 64,
        return_scores: bool = False,
        *,
        return_truncated: bool = False,
        return_alignments: bool = False,
        min_length: OutputLength = 0,
        prefix: Sequences | None = None,
        seed: int | None = None,
        distinct_texts: bool = False,
        constraints: Constraints | None = None,
        include_prompt: bool = False,
        stop: Sequence[str] = (),
        **options: Unpack[SearchOptions],
    ) -> Any:
        """Continues prompts with a compiled search.

        The result of one prompt does not depend on the others. An empty prompt is
        continued from the start token.

        Args:
            inputs: a prompt or a list of prompts, if the model has a tokenizer; or
                token ids: a list of lists of ints, or an int array
                `(batch, prompt_length)` padded at the end. Instead of a list, also an
                array, a tensor or a `tf.data.Dataset`, batched or not.
            search: the search; `None` = `default_search`, `Sampling(top_p=0.9)`,
                changed by `options`. `GreedySearch()` and `BeamSearch()` give the most
                probable text. They suit answers, and cause repetitions in running text.
            max_length: int or `RelativeLength`, maximum number of new tokens, the end
                token included; `None` = 256, or `output_length_ratio` times the length
                of the prompt if this is more. A text that reaches it is cut off there,
                without an end token. The `max_length` of the model limits the sum of
                prompt and new tokens.
            batch_size: int, number of prompts continued together.
            return_scores: bool, for texts: whether to return the scores as well.
            return_truncated: bool, for texts: whether to return as well which of them
                have reached the maximum length without an end token.
            return_alignments: must be `False`.
            min_length: int or `RelativeLength`, minimum number of new tokens.
            prefix: the beginning of each continuation: a text for a text; or one entry
                for each prompt, texts or token ids without end token, which may be
                empty. The scores are those of the whole continuation.
            seed: int from -2**31 to 2**31 - 1, seed of `Sampling`; if `None`, NumPy
                draws it, so `keras.utils.set_random_seed` determines it.
            distinct_texts: bool, for texts: whether each text of a prompt is returned
                once, with its best hypothesis.
            constraints: the phrases that must occur in each continuation; see
                `GenerativeModel.generate`. Requires a `BeamSearch`.
            include_prompt: bool, for texts: whether each text begins with its prompt.
                With a tokenizer of subwords this also keeps the space between them.
            stop: list of texts, for texts. A continuation ends in front of the first
                of them; see `GenerativeModel.generate`.
            **options: options of the search by name; see `GenerativeModel.generate`.

        Returns:
            For token ids a `SearchResult` of NumPy arrays, without the prompts. For
            texts a list of texts (for a single text, a text), or of lists of texts if
            the search returns several hypotheses. With `return_scores=True` a tuple
            with a float32 array of scores `(batch,)` or `(batch, num_hypotheses)`; with
            `return_truncated=True` also with a boolean array of this shape.

        Raises:
            ValueError: if a token id is not in the vocabulary, a prompt is longer than
                `max_length` of the model, the inputs are texts and the model has no
                tokenizer, or an argument is out of range.
            FloatingPointError: if a hypothesis ends because the logits of a step have
                no probabilities: one is NaN or `inf`, or all are `-inf`.

        Example:

        ```python
        language_model.generate("A man", GreedySearch(), max_length=20)
        prompts = ["A man", "Two dogs run"]
        language_model.generate(prompts, Sampling(top_p=0.9), include_prompt=True)
        language_model.generate([[2, 17, 25]]).token_ids
        ```
        """
        if return_alignments:
            _refuse("`return_alignments`")
        search = chosen_search("generate", search, self.default_search, options)
        request = Request(search, max_length, min_length)
        return self._generator.generate(
            inputs,
            request,
            batch_size=batch_size,
            return_scores=return_scores,
            return_truncated=return_truncated,
            prefix=prefix,
            seed=seed,
            distinct_texts=distinct_texts,
            constraints=constraints,
            stop=stop,
            include_source=include_prompt,
        )

    def score_texts(
        self,
        texts: Sequences,
        context: int | None = None,
        stride: int | None = None,
        batch_size: int = 64,
    ) -> ScoreResult:
        """Computes the log-probability of texts of any length.

        A text that is longer than `context` is scored in windows, which overlap:
        `stride` tokens of a window are scored, and those before them are only context.
        The first tokens of a text have all their context.

        With `add_start_token` the start token precedes each text and the end token
        follows it. Without it, the first token of a text is only context, and no end
        token is added.

        Args:
            texts: a text or a list of texts, if the model has a tokenizer; or token
                ids, likewise without start and end tokens.
            context: int, number of tokens that a window attends to; `None` =
                `max_length` of the model. A model without `max_length` requires it: the
                length of the windows that it was trained on, since most models predict
                poorly beyond it.
            stride: int from 1 to `context`, number of tokens that a window scores.
                `context` = windows without overlap, the fastest; 1 = each token with
                the maximum context. `None` = half of `context`.
            batch_size: int, number of windows scored together.

        Returns:
            A `ScoreResult` of NumPy arrays, one entry for each text, with the
            `perplexity` of a token.

        Raises:
            ValueError: if `context` or `stride` is missing or out of range, or a token
                id is not in the vocabulary.

        Example:

        ```python
        result = language_model.score_texts(["A man sees two dogs."], context=32)
        print(result.scores.shape, result.perplexity > 1)  # (1,) True
        ```
        """
        return score_texts(self, texts, context, stride, batch_size)

    def align(
        self,
        sources: Sequences,
        targets: Sequences,
        layer: int | None = None,
        batch_size: int = 64,
    ) -> list[Alignment]:
        """Raises `ValueError`: the model has no cross-attention."""
        _refuse("`align`")

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Raises `ValueError`: the model has no cross-attention."""
        _refuse("`cross_attention`")

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> CausalLMState:
        """Computes the keys and values of the prompts, all in one pass.

        Args:
            encoder_token_ids: int tensor `(batch, prompt_length)`, the prompts, padded
                at the end.
            num_beams: int, number of hypotheses of each prompt.
            max_length: int or int32 scalar tensor, number of steps that the state has
                room for.
            return_attention: must be `False`.

        Returns:
            The state of the first step.

        Raises:
            ValueError: if `return_attention` is `True`.
        """
        if return_attention:
            _refuse("a `coverage_penalty` and other searches with `needs_attention`")
        token_ids = self.prepare_sources(encoder_token_ids)
        batch, prompt_length = ops.shape(token_ids)
        last = prompt_lengths(token_ids, self.pad_token_id)[:, None] - 1
        prompt_mask = ops.arange(prompt_length, dtype="int32")[None] < last
        positions = None
        if self.positions.uses_longest_position:
            index = ops.arange(prompt_length, dtype="int32")[None]
            positions = ops.minimum(index, last)
        empty = self.decoder.empty_caches(None, prompt_length, batch_size=batch)
        _, filled = self.decoder(
            self.embed_target(token_ids, training=False),
            self_attention_cache=[cache for (cache,) in empty],
            self_attention_cache_update_index=0,
            training=False,
            positions=positions,
        )
        entries = max_length * num_beams
        known = ops.broadcast_to(
            prompt_mask[:, None], (batch, num_beams, prompt_length)
        )
        more = ops.zeros((batch, num_beams, entries), "bool")
        return {
            "caches": [(cache.extended(prompt_length + entries),) for cache in filled],
            "history": ops.concatenate([known, more], axis=2),
            "prompt_mask": prompt_mask,
            "last_tokens": ops.take_along_axis(token_ids, last, axis=1)[:, 0],
            **self._output_state(),
        }

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: CausalLMState
    ) -> tuple[Tensor, CausalLMState]:
        """Computes the logits of the next tokens; see `GenerativeModel.decode_step`."""
        last = ops.cast(state["last_tokens"][:, None], token_ids.dtype)
        token_ids = ops.where(ops.equal(index, 0), last, token_ids)
        num_beams, entries = state["history"].shape[1], ops.shape(state["history"])[2]
        prompt_length = ops.shape(state["prompt_mask"])[1]
        newest = prompt_length + index * num_beams
        history = add_newest(state["history"], newest)
        first = int32_sum(state["prompt_mask"], axis=1)[:, None]
        positions = ops.broadcast_to(first + index, ops.shape(token_ids))
        entry = ops.arange(entries, dtype="int32")[None]
        steps = ops.floor_divide(entry - prompt_length, num_beams)
        x, caches = self.decoder.step(
            self.embed_target(token_ids, positions, training=False),
            state["caches"],
            newest,
            attention_mask=history,
            positions=positions,
            cache_positions=ops.where(entry < prompt_length, entry, first + steps),
        )
        logits = self.compute_logits(x, state.get("output_kernel"))
        return logits, {**state, "caches": caches, "history": history}

    def max_steps(
        self, source_lengths: SizeT, max_length: OutputLength | None = None
    ) -> SizeT:
        """Returns the maximum numbers of new tokens, as the context limits them.

        Args:
            source_lengths: int or int32 tensor, lengths of prompts in tokens.
            max_length: int or `RelativeLength`; see `generate`.

        Returns:
            int or int32 tensor, of the type and shape of `source_lengths`.
        """
        steps = self._new_tokens(source_lengths, max_length)
        if self.max_length is None:
            return steps
        return smaller(steps, self.max_length + 1 - source_lengths)

    def longest_output(
        self, source_length: SizeT, max_length: OutputLength | None = None
    ) -> SizeT:
        """Returns the maximum number of new tokens of a batch of prompts.

        Args:
            source_length: int or int32 scalar tensor, length of the padded prompts.
            max_length: int or `RelativeLength`; see `generate`.

        Returns:
            int or int32 scalar tensor.
        """
        steps = self._new_tokens(source_length, max_length)
        return steps if self.max_length is None else smaller(steps, self.max_length)

    def _new_tokens(
        self, prompt_lengths: SizeT, max_length: OutputLength | None
    ) -> SizeT:
        if max_length is not None:
            return output_lengths(max_length, prompt_lengths)
        return default_lengths(
            prompt_lengths, self.output_length_ratio, DEFAULT_NEW_TOKENS
        )

    def own_tokenizers(self) -> "dict[str, Tokenizer]":
        """Returns the tokenizer under `"tokenizer"`; empty without a tokenizer."""
        return {} if self.tokenizer is None else {"tokenizer": self.tokenizer}

    def get_config(self) -> Config:
        return {**super().get_config(), "tie_embeddings": self.shares_output}


def prompt_lengths(token_ids: TokenIds, pad_token_id: int) -> Tensor:
    """Returns the lengths of padded prompts, int32 `(batch,)`, at least 1."""
    real = padding_mask(token_ids, pad_token_id)
    return ops.maximum(int32_sum(real, axis=1), 1)


def _refuse(argument: str) -> NoReturn:
    raise ValueError(
        f"{argument} requires a model with cross-attention, such as `Seq2Seq`; "
        "received a `CausalLM`, which has no source."
    )
