"""What the signatures of all SavedModels share: compiled parts, targets, padding."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import SearchResult
from keras_transformer.export.saved_model.quantization import P, StoredWeights, T
from keras_transformer.inference.alignment import BatchAlignment, align_batch
from keras_transformer.inference.batch_search import search_batch
from keras_transformer.inference.request import Request
from keras_transformer.inference.scoring import token_log_probabilities
from keras_transformer.inference.sequence_model import SequenceInputs
from keras_transformer.inference.token_ids import length_buckets, power_of_two
from keras_transformer.models import GenerativeModel
from keras_transformer.text import Tokenizer

DEFAULT_MAX_LENGTH = 512  # of models without a limit
MAX_BATCH_BUCKET = 64
SHORTEST_PREFIX = 4  # tokens, also without a prefix: one shape serves both
PIECE_LENGTH = 8  # tokens of a call of `continue`

TensorT = TypeVar("TensorT", tf.Tensor, tf.RaggedTensor)
# Tensors by name.
Outputs: TypeAlias = dict[str, tf.Tensor]


def traced(
    function: Callable[..., Outputs], *inputs: tf.TensorSpec
) -> tf.types.experimental.PolymorphicFunction:
    """Returns a function with a signature.

    AutoGraph takes a long time and has nothing to convert in these functions.
    """
    return tf.function(function, input_signature=inputs, autograph=False)


def input_spec(name: str, dtype: tf.DType = tf.string, rank: int = 1) -> tf.TensorSpec:
    """Returns the specification of an input of any sizes."""
    return tf.TensorSpec([None] * rank, dtype, name=name)


class SearchFunctions(tf.Module):
    """Model and search as compiled TensorFlow functions, and the target tokenizer.

    `target_tokenizer` is `None` if a graph cannot contain it. Batches and lengths are
    padded to a few sizes outside the compiled parts.
    """

    target_tokenizer: Any

    def __init__(
        self,
        model: GenerativeModel,
        request: Request,
        quantization: str | None = None,
    ):
        super().__init__()
        tokenizer = model.target_tokenizer
        has_graph = tokenizer is not None and tokenizer.in_graph
        self.target_tokenizer = tokenizer if has_graph else None
        self.weights = StoredWeights(model, quantization)
        self._vocabularies = {}
        if self.target_tokenizer is not None:
            vocabulary = self.target_tokenizer.get_vocabulary()
            self._vocabularies["target"] = tf.constant(vocabulary)
        self._limits = {
            "source": model.max_source_length or DEFAULT_MAX_LENGTH,
            "target": model.max_target_length or DEFAULT_MAX_LENGTH,
        }
        names = model.length_arguments
        self._limit_names = {"source": names[0], "target": names[-1]}
        self._pad_token_id = model.pad_token_id
        self._start_token_id = model.start_token_id
        self._max_output_lengths = lambda lengths: model.max_output_lengths(
            lengths, request.max_length
        )
        self._compile(model, request)

    def _compile(self, model: GenerativeModel, request: Request) -> None:
        """Compiles the parts of the functions that compute with the model."""

        def inputs(sources: tf.Tensor, targets: tf.Tensor) -> SequenceInputs:
            return {"encoder_token_ids": sources, "decoder_token_ids": targets}

        def search(
            token_ids: tf.Tensor, prefixes: tf.Tensor, seed: tf.Tensor
        ) -> SearchResult:
            return search_batch(model, token_ids, request, prefixes, seed)

        def search_phrases(
            token_ids: tf.Tensor, prefixes: tf.Tensor, phrases: tf.Tensor
        ) -> SearchResult:
            return search_batch(model, token_ids, request, prefixes, phrases=phrases)

        def search_piece(token_ids: tf.Tensor, seed: tf.Tensor) -> SearchResult:
            piece = Request(request.search, PIECE_LENGTH)
            return search_batch(model, token_ids, piece, seed=seed)

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

        def compiled(function: Callable[P, T]) -> Callable[P, T]:
            return compile_function(self.weights.used_in(function), model)

        self._search = compiled(search)
        self._search_phrases = compiled(search_phrases)
        self._search_piece = compiled(search_piece)
        self._score = compiled(score)
        self._align = compiled(align)
        self._scores_of_heads = compiled(attention_scores)

    def _outputs(self, result: SearchResult, count: tf.Tensor) -> Outputs:
        """Returns the texts of the first `count` rows, `(count, num_hypotheses)`."""
        found = result.token_ids[:count]
        flat = tf.reshape(found, [-1, tf.shape(found)[2]])
        texts = self.target_tokenizer.detokenize(flat)
        return {
            "text": tf.reshape(texts, tf.shape(found)[:2]),
            "score": result.scores[:count],
            "length": result.lengths[:count],
            "truncated": result.truncated[:count],
        }

    def _token_outputs(self, result: SearchResult, count: tf.Tensor) -> Outputs:
        """Returns the token ids of the first `count` rows."""
        length = tf.reduce_max(result.lengths[:count])
        return {
            "token_ids": result.token_ids[:count, :, :length],
            "score": result.scores[:count],
            "length": result.lengths[:count],
            "truncated": result.truncated[:count],
        }

    def _empty_prefixes(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns what `_prefixes` returns for empty strings."""
        return tf.fill([rows, SHORTEST_PREFIX], self._pad_token_id)

    def _prefixes(
        self, prefix: tf.Tensor, source_lengths: tf.Tensor, rows: tf.Tensor
    ) -> tf.Tensor:
        """Returns token ids `(rows, prefix_length)`; the length is a power of two."""
        tokens = self.target_tokenizer.tokenize(prefix)
        tokens = check_language(self.target_tokenizer, prefix, tokens, "prefix")
        limits = self._max_output_lengths(tf.cast(source_lengths, tf.int32))
        is_short = tf.cast(tokens.row_lengths(), tf.int32) < limits
        message = "`prefix` must be shorter than the maximum output length"
        tokens = asserted(tokens, is_short, message)
        longest = tokens.bounding_shape(out_type=tf.int64)[1]
        length = round_up(
            longest, powers_of_two(SHORTEST_PREFIX, self._limits["target"])
        )
        shape = tf.stack([tf.cast(rows, tf.int64), length])
        return tokens.to_tensor(self._pad_token_id, shape=shape)

    def _checked_tokens(
        self, tokenizer: Tokenizer, texts: tf.Tensor, argument: str, side: str
    ) -> tf.RaggedTensor:
        """Returns the token ids of texts; asserts their lengths and languages."""
        tokens = tokenizer.tokenize(texts, add_end=True)
        tokens = self._check_length(tokens, argument, side)
        return check_language(tokenizer, texts, tokens, argument)

    def _scores(self, sources: tf.Tensor, tokens: tf.RaggedTensor) -> Outputs:
        """Returns the scores of targets `(batch,)` and of their tokens."""
        scores = self._token_scores(sources, tokens)
        names = self._to_strings("target", tokens.to_tensor(self._pad_token_id))
        return {
            "score": tf.reduce_sum(scores, axis=1),
            "tokens": names,
            "token_scores": scores,
        }

    def _token_scores(self, sources: tf.Tensor, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Returns the log-probabilities of target tokens, `(batch, target_length)`."""
        targets = self._pad(tokens, "target")
        count, length = tf.unstack(tokens.bounding_shape())
        return self._score(sources, self._shift(targets), targets)[:count, :length]

    def _check_length(
        self, tokens: tf.RaggedTensor, argument: str, side: str
    ) -> tf.RaggedTensor:
        """Adds an assertion that rows are not longer than the limit of the side."""
        limit, name = self._limits[side], self._limit_names[side]
        message = f"`{argument}` must have at most {name}={limit} tokens"
        return asserted(tokens, tokens.row_lengths() <= limit, message)

    def _pad(
        self, tokens: tf.RaggedTensor, side: str, lengths: list[int] | None = None
    ) -> tf.Tensor:
        """Pads the tokens to one of `lengths`, `length_buckets` by default."""
        limit = self._limits[side]
        rows, longest = tf.unstack(tokens.bounding_shape(out_type=tf.int64))
        length = round_up(longest, lengths or length_buckets(limit))
        length = tf.minimum(length, tf.constant(limit, tf.int64))
        shape = [round_up(rows, powers_of_two(1, MAX_BATCH_BUCKET)), length]
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


def best_texts(outputs: Outputs) -> Outputs:
    """Returns the best of the hypotheses of each row, `(batch,)`."""
    return {name: outputs[name][:, 0] for name in ("text", "score", "truncated")}


def random_seeds(count: tf.Tensor) -> tf.Tensor:
    """Draws a seed for each row, int32 `(count,)`."""
    return tf.random.uniform([count], maxval=tf.int32.max, dtype=tf.int32)


def padded_seeds(seed: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Adds seeds for the rows that fill the batch."""
    return tf.pad(seed, [[0, tf.cast(rows, tf.int32) - tf.shape(seed)[0]]])


def asserted(
    values: TensorT, conditions: tf.Tensor, message: str, *received: tf.Tensor
) -> TensorT:
    """Returns the values, whose computation fails unless all conditions are true."""
    checked = tf.debugging.Assert(tf.reduce_all(conditions), [message, *received])
    with tf.control_dependencies([checked]):
        return tf.identity(values)


def check_same_batch(
    values: tf.Tensor, name: str, others: tf.Tensor, other_name: str
) -> tf.Tensor:
    """Adds an assertion that two tensors have the same number of entries."""
    is_same = tf.shape(values)[0] == tf.shape(others)[0]
    message = f"`{name}` must have one entry for each of `{other_name}`"
    return asserted(values, is_same, message)


def check_language(
    tokenizer: Tokenizer, texts: tf.Tensor, tokens: tf.RaggedTensor, argument: str
) -> tf.RaggedTensor:
    """Adds an assertion that the vocabulary has the language tokens of the texts."""
    if tokenizer.language_token_pattern is None:
        return tokens
    known = has_known_language(tokenizer, texts, tokens)
    expected = "a language token of the vocabulary or with none"
    return asserted(tokens, known, f"`{argument}` must begin with {expected}")


def has_known_language(
    tokenizer: Tokenizer, texts: tf.Tensor, tokens: tf.RaggedTensor
) -> tf.Tensor:
    """Returns which texts begin with a language token of the vocabulary or none."""
    pattern = tokenizer.language_token_pattern
    if pattern is None:
        return tf.ones_like(texts, tf.bool)
    first = tokens[:, :1].to_tensor(tokenizer.pad_token_id, shape=[None, 1])[:, 0]
    begins = tf.strings.regex_full_match(texts, f"{pattern}(?s:.*)")
    return ~(begins & (first == tokenizer.unknown_token_id))


def round_up(size: tf.Tensor, steps: list[int]) -> tf.Tensor:
    """Rounds an int64 scalar up to one of `steps`, or to a multiple of the last."""
    every = tf.constant(steps, tf.int64)
    beyond = -(-size // steps[-1]) * steps[-1]
    return tf.where(
        size <= steps[-1],
        tf.reduce_min(tf.where(every >= size, every, tf.int64.max)),
        beyond,
    )


def powers_of_two(smallest: int, largest: int) -> list[int]:
    """Returns the powers of two from `smallest` to the first of at least `largest`."""
    powers = [power_of_two(smallest)]
    while powers[-1] < largest:
        powers.append(2 * powers[-1])
    return powers
