"""The signatures of a SavedModel whose sources are arrays, such as frames or pixels."""

import tensorflow as tf

from keras_transformer.decoding import SearchResult
from keras_transformer.export.model_support import array_input
from keras_transformer.export.saved_model.search_functions import (
    MAX_BATCH_BUCKET,
    Outputs,
    SearchFunctions,
    best_texts,
    check_same_batch,
    input_spec,
    padded_seeds,
    powers_of_two,
    random_seeds,
    round_up,
    traced,
)
from keras_transformer.inference.request import Request
from keras_transformer.models import GenerativeModel


class ArraySignatures(SearchFunctions):
    """Model, search and target tokenizer as TensorFlow functions of arrays.

    The batch is padded to a power of two. The arrays keep their shape.
    """

    def __init__(
        self, model: GenerativeModel, request: Request, quantization: str | None = None
    ):
        super().__init__(model, request, quantization)
        self._lengths = lambda source: tf.math.count_nonzero(
            model.source_mask(source), axis=1, dtype=tf.int32
        )
        shape, dtype = array_input(model)
        source = tf.TensorSpec([None, *shape], dtype, name="source")
        seed, prefix = input_spec("seed", tf.int32), input_spec("prefix")
        serve = self._serve_tokens if self.target_tokenizer is None else self._serve
        functions = {
            "serving_default": traced(serve, source),
            "tokens": traced(self._tokens, source, seed),
        }
        if self.target_tokenizer is not None:
            target = input_spec("target")
            functions["nbest"] = traced(self._nbest, source, prefix, seed)
            functions["score"] = traced(self._score_texts, source, target)
        self.functions = functions

    def _serve(self, source: tf.Tensor) -> Outputs:
        """Decodes arrays to texts, scores and truncations `(batch,)`."""
        count = tf.shape(source)[0]
        result = self._decode(source, random_seeds(count))
        return best_texts(self._outputs(result, count))

    def _serve_tokens(self, source: tf.Tensor) -> Outputs:
        """Decodes arrays to token ids, the signature without a tokenizer."""
        return self._tokens(source, random_seeds(tf.shape(source)[0]))

    def _tokens(self, source: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Decodes arrays to token ids `(batch, num_hypotheses, target_length)`."""
        seed = check_same_batch(seed, "seed", source, "source")
        return self._token_outputs(self._decode(source, seed), tf.shape(source)[0])

    def _nbest(self, source: tf.Tensor, prefix: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Decodes arrays to hypotheses `(batch, num_hypotheses)`."""
        prefix = check_same_batch(prefix, "prefix", source, "source")
        seed = check_same_batch(seed, "seed", source, "source")
        lengths = self._lengths(source)
        rows = _rows(source)
        prefixes = self._prefixes(prefix, lengths, rows)
        seeds = padded_seeds(seed, rows)
        result = self._search(_padded(source, rows), prefixes, seeds)
        return self._outputs(result, tf.shape(source)[0])

    def _score_texts(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Scores texts `(batch,)`, and their tokens, given arrays."""
        target = check_same_batch(target, "target", source, "source")
        tokens = self._checked_tokens(self.target_tokenizer, target, "target", "target")
        return self._scores(_padded(source, _rows(source)), tokens)

    def _decode(self, source: tf.Tensor, seed: tf.Tensor) -> SearchResult:
        rows = _rows(source)
        seeds = padded_seeds(seed, rows)
        return self._search(_padded(source, rows), self._empty_prefixes(rows), seeds)


def _rows(source: tf.Tensor) -> tf.Tensor:
    """Returns the number of rows of the padded batch, an int64 scalar."""
    count = tf.shape(source, tf.int64)[0]
    return round_up(count, powers_of_two(1, MAX_BATCH_BUCKET))


def _padded(source: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Repeats the last array, or zeros of an empty batch, to fill the batch."""
    count = tf.shape(source, tf.int64)[0]
    empty = tf.zeros(tf.concat([[1], tf.shape(source)[1:]], 0), source.dtype)
    index = tf.minimum(tf.range(rows), tf.maximum(count - 1, 0))
    return tf.gather(tf.concat([source, empty], 0), index)
