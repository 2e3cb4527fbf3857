"""The signatures of a SavedModel: TensorFlow functions of strings or token ids."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import SearchResult
from keras_transformer.export.protocols import ExportableModel, tokenizers_of
from keras_transformer.export.saved_model.quantization import StoredWeights
from keras_transformer.inference.alignment import BatchAlignment, align_batch
from keras_transformer.inference.generation import Request
from keras_transformer.inference.protocols import HasAttentionScores, SequenceInputs
from keras_transformer.inference.scoring import token_log_probabilities
from keras_transformer.inference.token_ids import length_buckets, power_of_two
from keras_transformer.text import Tokenizer
from keras_transformer.text.prompt_tokenizer import with_first_token

DEFAULT_MAX_LENGTH = 512  # of models without a limit
MAX_BATCH_BUCKET = 64
PIECE_LENGTH = 8  # tokens of a call of `continue`
# A text grows from call to call, so `continue` has fewer lengths than other functions.
SHORTEST_STREAM = 64

# Tensors by name.
Outputs: TypeAlias = dict[str, tf.Tensor]

# AutoGraph, which takes long, has nothing to convert in these functions.
_function = functools.partial(tf.function, autograph=False)


def _input(name: str, dtype: tf.DType = tf.string, rank: int = 1) -> tf.TensorSpec:
    return tf.TensorSpec([None] * rank, dtype, name=name)


class _Decoded(NamedTuple):
    """Decoded texts. The batch of `token_ids` and `result` is padded.

    Attributes:
        tokens: ragged int32 tensor `(batch, None)`, tokens of the texts.
        token_ids: int32 tensor `(padded_batch, padded_length)`, the same, padded.
        result: hypotheses of the rows of `token_ids`.
    """

    tokens: tf.RaggedTensor
    token_ids: tf.Tensor
    result: SearchResult


class _BestHypotheses(NamedTuple):
    """The best hypotheses of texts, and the pairs that the model aligns.

    Attributes:
        outputs: outputs of a signature: texts, scores and tokens.
        sources: int32 tensor `(padded_batch, padded_source_length)`.
        targets: int32 tensor `(padded_batch, padded_target_length)`, with the start
            token.
        batch: int32 scalar, number of texts.
        target_length: int32 scalar, greatest length of the hypotheses.
        source_length: int32 scalar, greatest length of the texts.
    """

    outputs: Outputs
    sources: tf.Tensor
    targets: tf.Tensor
    batch: tf.Tensor
    target_length: tf.Tensor
    source_length: tf.Tensor


def streams(model: ExportableModel, request: Request) -> bool:
    """Returns whether a model has the signature `continue`.

    Its pieces are those of one search if the choice of a token depends on nothing but
    the tokens before it.

    Args:
        model: the model.
        request: the search and its limits.
    """
    search = request.search
    is_alone = search.num_beams == 1 and not getattr(search, "logits_processors", ())
    return not model.has_cross_attention and is_alone


class Signatures(tf.Module):
    """Tokenizers, model and search as TensorFlow functions.

    The functions pad batches and lengths to a few sizes outside the compiled parts.

    Args:
        model: a model with tokenizers.
        request: the search and its limits.
        quantization: how the weights are stored; see `StoredWeights`.

    Attributes:
        functions: the functions by the names of their signatures.
    """

    def __init__(
        self,
        model: ExportableModel,
        request: Request,
        quantization: str | None = None,
    ):
        super().__init__()
        self.source_tokenizer, self.target_tokenizer = tokenizers_of(model)
        self.weights = StoredWeights(model, quantization)
        self._vocabularies = {
            "source": tf.constant(self.source_tokenizer.get_vocabulary()),
            "target": tf.constant(self.target_tokenizer.get_vocabulary()),
        }
        if self.source_tokenizer is self.target_tokenizer:
            self._vocabularies["source"] = self._vocabularies["target"]
        self._limits = {
            "source": model.max_source_length or DEFAULT_MAX_LENGTH,
            "target": model.max_target_length or DEFAULT_MAX_LENGTH,
        }
        self._source_vocabulary_size = model.source_vocabulary_size
        self._pad_token_id = model.pad_token_id
        self._start_token_id = model.start_token_id
        self._empty_source = model.empty_source
        self._max_steps = lambda lengths: model.max_steps(lengths, request.max_length)
        self._longest_targets = lambda lengths: model.max_steps(lengths, tf.int32.max)
        self._compile(model, request)
        self.functions = {
            "serving_default": self.serve,
            "nbest": self.nbest,
            "tokens": self.tokens,
            "score": self.score,
        }
        if model.has_cross_attention:
            self.functions["attention"] = _function(
                self._attention, input_signature=[_input("text")]
            )
        if streams(model, request):
            self.functions["continue"] = _function(
                self._continue,
                input_signature=[
                    *(_input("text"), _input("state"), _input("seed", tf.int32))
                ],
            )
        if isinstance(model, HasAttentionScores):
            self.functions["attention_scores"] = _function(
                self._attention_scores, input_signature=[_input("text")]
            )

    def _compile(self, model: ExportableModel, request: Request) -> None:
        """Compiles the parts of the functions that compute with the model."""

        def inputs(sources: tf.Tensor, targets: tf.Tensor) -> SequenceInputs:
            return {"encoder_token_ids": sources, "decoder_token_ids": targets}

        def search(
            token_ids: tf.Tensor, prefixes: tf.Tensor, seed: tf.Tensor
        ) -> SearchResult:
            return model.search(token_ids, *request, prefixes=prefixes, seed=seed)

        def search_piece(token_ids: tf.Tensor, seed: tf.Tensor) -> SearchResult:
            return model.search(token_ids, request.search, PIECE_LENGTH, seed=seed)

        def score(
            sources: tf.Tensor, targets: tf.Tensor, labels: tf.Tensor
        ) -> tf.Tensor:
            return token_log_probabilities(model, inputs(sources, targets), labels)

        def align(sources: tf.Tensor, targets: tf.Tensor) -> BatchAlignment:
            return align_batch(model, inputs(sources, targets))

        def attention_scores(sources: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
            call: Callable[..., Any] = model
            _, scores = call(
                inputs(sources, targets), training=False, return_attention_scores=True
            )
            return tf.cast(tf.stack(scores["cross"], axis=1), tf.float32)

        def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
            return compile_function(self.weights.used_in(function), model)

        self._search = compiled(search)
        self._search_piece = compiled(search_piece)
        self._score = compiled(score)
        self._align = compiled(align)
        self._scores_of_heads = compiled(attention_scores)

    @_function(input_signature=[_input("text")])
    def serve(self, text: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` to strings and scores `(batch,)`."""
        outputs = self._outputs(self._decode(text))
        return {name: outputs[name][:, 0] for name in ("text", "score")}

    @_function(
        input_signature=[_input("text"), _input("prefix"), _input("seed", tf.int32)]
    )
    def nbest(self, text: tf.Tensor, prefix: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` to hypotheses `(batch, num_hypotheses)`."""
        prefix = _check_same_batch(prefix, "prefix", text, "text")
        seed = _check_same_batch(seed, "seed", text, "text")
        return self._outputs(self._decode(text, prefix, seed))

    @_function(input_signature=[_input("token_ids", tf.int32, rank=2)])
    def tokens(self, token_ids: tf.Tensor) -> Outputs:
        """Decodes padded token ids `(batch, source_length)` to hypotheses."""
        size = self._source_vocabulary_size
        checked = tf.debugging.Assert(
            tf.reduce_all((token_ids >= 0) & (token_ids < size)),
            [f"`token_ids` must be from 0 to {size - 1}; received", token_ids],
        )
        with tf.control_dependencies([checked]):
            real = tf.ragged.boolean_mask(token_ids, token_ids != self._pad_token_id)
        if self._empty_source:
            real = with_first_token(real, self._empty_source[0])
        tokens = self._check_length(real, "token_ids", "source")
        result = self._search_padded(tokens).result
        count = tf.shape(token_ids)[0]
        length = tf.reduce_max(result.lengths[:count])
        return {
            "token_ids": result.token_ids[:count, :, :length],
            "score": result.scores[:count],
            "length": result.lengths[:count],
        }

    def _continue(self, text: tf.Tensor, state: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Continues prompts `(batch,)` and what they have been continued with."""
        state = _check_same_batch(state, "state", text, "text")
        seed = _check_same_batch(seed, "seed", text, "text")
        prompts = self.source_tokenizer.tokenize(text, add_end=True)
        prompts = self._check_length(prompts, "text", "source")
        earlier = tf.strings.to_number(tf.strings.split(state), tf.int32)
        earlier = earlier.with_row_splits_dtype(prompts.row_splits.dtype)
        tokens = tf.concat([prompts, earlier], axis=1)
        token_ids = self._pad(
            self._check_length(tokens, "state", "source"),
            "source",
            _powers_of_two(SHORTEST_STREAM, self._limits["source"]),
        )
        rows, count = tf.shape(token_ids)[0], tf.shape(text)[0]
        seeds = tf.pad(seed, [[0, rows - count]])
        found = self._search_piece(token_ids, seeds).token_ids[:count, 0]
        piece = tf.ragged.boolean_mask(found, found != self._pad_token_id)
        written = tf.concat([earlier, piece], axis=1)
        ended = tf.reduce_any(found == self.target_tokenizer.end_token_id, axis=1)
        ended |= piece.row_lengths() < PIECE_LENGTH  # The context of the model is full.
        lengths = prompts.row_lengths() + written.row_lengths()
        ended |= lengths > self._limits["source"]
        return {
            "text": self.target_tokenizer.detokenize(written),
            "state": tf.strings.reduce_join(
                tf.strings.as_string(written), axis=1, separator=" "
            ),
            "length": tf.cast(written.row_lengths(), tf.int32),
            "done": tf.cast(ended, tf.int32),
        }

    @_function(input_signature=[_input("source"), _input("target")])
    def score(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Scores pairs of strings `(batch,)`, and the tokens of the targets."""
        sources = self.source_tokenizer.tokenize(source, add_end=True)
        sources = _check_language(self.source_tokenizer, source, sources, "source")
        sources = self._pad(self._check_length(sources, "source", "source"), "source")
        target = _check_same_batch(target, "target", source, "source")
        tokens = self.target_tokenizer.tokenize(target, add_end=True)
        tokens = _check_language(self.target_tokenizer, target, tokens, "target")
        tokens = self._check_length(tokens, "target", "target")
        longest = self._longest_targets(
            _lengths(sources, self._pad_token_id)[: tokens.nrows()]
        )
        checked = tf.debugging.assert_less_equal(
            tf.cast(tokens.row_lengths(), tf.int32),
            longest,
            "`source` and `target` must be shorter together",
        )
        with tf.control_dependencies([checked]):
            targets = self._pad(tf.identity(tokens), "target")
        count, length = tf.unstack(tokens.bounding_shape())
        scores = self._score(sources, self._shift(targets), targets)[:count, :length]
        return {
            "score": tf.reduce_sum(scores, axis=1),
            "tokens": self._to_strings("target", targets[:count, :length]),
            "token_scores": scores,
        }

    def _attention(self, text: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` and aligns the tokens of both sides."""
        outputs, sources, targets, batch, length, width = self._best(text)
        aligned = self._align(sources, targets)
        return {
            **outputs,
            "attention": aligned.attention[:batch, :length, :width],
            "positions": aligned.positions[:batch, :length],
        }

    def _attention_scores(self, text: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` and returns the cross-attention of all heads."""
        outputs, sources, targets, batch, length, width = self._best(text)
        scores = self._scores_of_heads(sources, targets)
        return {**outputs, "attention_scores": scores[:batch, :, :, :length, :width]}

    def _best(self, text: tf.Tensor) -> _BestHypotheses:
        decoded = self._decode(text)
        tokens, token_ids, result = decoded
        outputs = self._outputs(decoded)
        width = tokens.bounding_shape(out_type=tf.int32)[1]
        length = tf.reduce_max(result.lengths[:, 0])
        buckets = length_buckets(DEFAULT_MAX_LENGTH)
        padded_length = _round_up(tf.cast(length, tf.int64), buckets)
        found = result.token_ids[:, 0, :padded_length]
        batch = tf.shape(text)[0]
        named = {
            **{name: outputs[name][:, 0] for name in ("text", "score")},
            "source_tokens": self._to_strings("source", token_ids[:batch, :width]),
            "tokens": self._to_strings("target", found[:batch, :length]),
        }
        targets = self._shift(found)
        return _BestHypotheses(named, token_ids, targets, batch, length, width)

    def _decode(
        self,
        text: tf.Tensor,
        prefix: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> _Decoded:
        """Decodes texts. One without words gives an empty hypothesis with score 0."""
        tokens = self.source_tokenizer.tokenize(text, add_end=True)
        tokens = self._check_length(tokens, "text", "source")
        tokens = _check_language(self.source_tokenizer, text, tokens, "text")
        _, token_ids, result = self._search_padded(tokens, prefix, seed)
        is_token = token_ids != self._pad_token_id
        for language_token_id in self.source_tokenizer.language_token_ids:
            is_token &= token_ids != language_token_id
        is_empty = tf.math.count_nonzero(is_token, axis=1, keepdims=True) <= 1
        if self._empty_source:  # The model continues it too.
            is_empty = tf.zeros_like(is_empty)
        result = SearchResult(
            tf.where(is_empty[:, None], self._pad_token_id, result.token_ids),
            tf.where(is_empty, 0, result.lengths),
            tf.where(is_empty, 0.0, result.scores),
        )
        return _Decoded(tokens, token_ids, result)

    def _outputs(self, decoded: _Decoded) -> Outputs:
        count = decoded.tokens.nrows()
        found = decoded.result.token_ids[:count]
        flat = tf.reshape(found, [-1, tf.shape(found)[2]])
        texts = self.target_tokenizer.detokenize(flat)
        return {
            "text": tf.reshape(texts, tf.shape(found)[:2]),
            "score": decoded.result.scores[:count],
            "length": decoded.result.lengths[:count],
        }

    def _search_padded(
        self,
        tokens: tf.RaggedTensor,
        prefix: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> _Decoded:
        """Pads the tokens and searches for the outputs of all rows."""
        token_ids = self._pad(tokens, "source")
        rows = tf.shape(token_ids)[0]
        if seed is None:
            seed = tf.random.uniform([rows], maxval=tf.int32.max, dtype=tf.int32)
        else:
            seed = tf.pad(seed, [[0, rows - tf.shape(seed)[0]]])
        if prefix is None:
            prefix = tf.fill([tokens.nrows()], "")
        prefixes = self._prefixes(prefix, tokens.row_lengths(), rows)
        return _Decoded(tokens, token_ids, self._search(token_ids, prefixes, seed))

    def _prefixes(
        self, prefix: tf.Tensor, source_lengths: tf.Tensor, rows: tf.Tensor
    ) -> tf.Tensor:
        """Returns token ids `(rows, prefix_length)`; the length is a power of two."""
        tokens = self.target_tokenizer.tokenize(prefix)
        tokens = _check_language(self.target_tokenizer, prefix, tokens, "prefix")
        checked = tf.debugging.assert_less(
            tf.cast(tokens.row_lengths(), tf.int32),
            self._max_steps(tf.cast(source_lengths, tf.int32)),
            "`prefix` must be shorter than the greatest output length",
        )
        with tf.control_dependencies([checked]):
            longest = tokens.bounding_shape(out_type=tf.int64)[1]
        length = _round_up(longest, _powers_of_two(4, self._limits["target"]))
        shape = tf.stack([tf.cast(rows, tf.int64), length])
        return tokens.to_tensor(self._pad_token_id, shape=shape)

    def _check_length(
        self, tokens: tf.RaggedTensor, argument: str, side: str
    ) -> tf.RaggedTensor:
        """Adds an assertion that rows are not longer than the limit of the side."""
        limit = self._limits[side]
        checked = tf.debugging.assert_less_equal(
            tokens.row_lengths(),
            tf.constant(limit, tf.int64),
            f"`{argument}` must have at most max_{side}_length={limit} tokens",
        )
        with tf.control_dependencies([checked]):
            return tf.identity(tokens)

    def _pad(
        self, tokens: tf.RaggedTensor, side: str, lengths: list[int] | None = None
    ) -> tf.Tensor:
        """Pads the tokens to one of `lengths`, `length_buckets` by default."""
        limit = self._limits[side]
        rows, longest = tf.unstack(tokens.bounding_shape(out_type=tf.int64))
        length = _round_up(longest, lengths or length_buckets(limit))
        length = tf.minimum(length, tf.constant(limit, tf.int64))
        shape = [_round_up(rows, _powers_of_two(1, MAX_BATCH_BUCKET)), length]
        return tokens.to_tensor(self._pad_token_id, shape=tf.stack(shape))

    def _to_strings(self, side: str, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of int32 ids, in the same shape; `""` for padding."""
        vocabulary = self._vocabularies[side]
        is_known = token_ids < tf.size(vocabulary)
        tokens = tf.gather(vocabulary, tf.where(is_known, token_ids, 0))
        return tf.where(is_known & (token_ids != self._pad_token_id), tokens, "")

    def _shift(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns the decoder's input: the start token, then all but the last token."""
        starts = tf.fill([tf.shape(token_ids)[0], 1], self._start_token_id)
        return tf.concat([starts, token_ids[:, :-1]], axis=1)


def _check_same_batch(
    values: tf.Tensor, name: str, others: tf.Tensor, other_name: str
) -> tf.Tensor:
    """Adds an assertion that two tensors have the same number of entries."""
    checked = tf.debugging.assert_equal(
        tf.shape(values)[0],
        tf.shape(others)[0],
        f"`{name}` must have one entry for each of `{other_name}`",
    )
    with tf.control_dependencies([checked]):
        return tf.identity(values)


def _check_language(
    tokenizer: Tokenizer, texts: tf.Tensor, tokens: tf.RaggedTensor, argument: str
) -> tf.RaggedTensor:
    """Adds an assertion that the vocabulary has the language tokens of the texts."""
    pattern = tokenizer.language_token_pattern
    if pattern is None:
        return tokens
    first = tokens[:, :1].to_tensor(tokenizer.pad_token_id, shape=[None, 1])[:, 0]
    begins = tf.strings.regex_full_match(texts, f"{pattern}(?s:.*)")
    known = ~(begins & (first == tokenizer.unknown_token_id))
    checked = tf.debugging.Assert(
        tf.reduce_all(known),
        [
            f"`{argument}` must begin with a language token of the vocabulary or with "
            "none"
        ],
    )
    with tf.control_dependencies([checked]):
        return tf.identity(tokens)


def _round_up(size: tf.Tensor, steps: list[int]) -> tf.Tensor:
    """Rounds an int64 scalar up to one of `steps`, or to a multiple of the last."""
    every = tf.constant(steps, tf.int64)
    beyond = -(-size // steps[-1]) * steps[-1]
    return tf.where(
        size <= steps[-1],
        tf.reduce_min(tf.where(every >= size, every, tf.int64.max)),
        beyond,
    )


def _powers_of_two(smallest: int, largest: int) -> list[int]:
    """Returns the powers of two from `smallest` to the first of at least `largest`."""
    powers = [power_of_two(smallest)]
    while powers[-1] < largest:
        powers.append(2 * powers[-1])
    return powers


def _lengths(token_ids: tf.Tensor, pad_token_id: int) -> tf.Tensor:
    """Returns the lengths of padded rows, int32 `(batch,)`."""
    return tf.math.count_nonzero(token_ids != pad_token_id, axis=1, dtype=tf.int32)
