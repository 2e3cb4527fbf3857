"""The signatures of a SavedModel whose sources are arrays, such as frames or pixels."""

import tensorflow as tf

from keras_transformer.decoding import SearchResult
from keras_transformer.export.protocols import ExportableModel, array_input
from keras_transformer.export.saved_model.search_functions import (
    MAX_BATCH_BUCKET,
    Outputs,
    SearchFunctions,
    check_language,
    check_same_batch,
    input_spec,
    powers_of_two,
    round_up,
    traced_function,
)
from keras_transformer.inference.request import Request


class ArraySignatures(SearchFunctions):
    """Model, search and target tokenizer as TensorFlow functions of arrays.

    The batch is padded to a power of two. The arrays keep their shape.

    Args:
        model: a model with a `source_spec`.
        request: the search and its limits.
        quantization: how the weights are stored; see `StoredWeights`.

    Attributes:
        functions: the functions by the names of their signatures.
    """

    def __init__(
        self, model: ExportableModel, request: Request, quantization: str | None = None
    ):
        super().__init__(model, request, quantization)
        self._lengths = lambda source: tf.math.count_nonzero(
            model.source_mask(source), axis=1, dtype=tf.int32
        )
        shape, dtype = array_input(model)
        source = tf.TensorSpec([None, *shape], dtype, name="source")
        seed, prefix = input_spec("seed", tf.int32), input_spec("prefix")
        serve = self._serve_tokens if self.target_tokenizer is None else self._serve
        self.functions = {
            "serving_default": traced_function(serve, input_signature=[source]),
            "tokens": traced_function(self._tokens, input_signature=[source, seed]),
        }
        if self.target_tokenizer is not None:
            self.functions["nbest"] = traced_function(
                self._nbest, input_signature=[source, prefix, seed]
            )
            self.functions["score"] = traced_function(
                self._score_texts, input_signature=[source, input_spec("target")]
            )

    def _serve(self, source: tf.Tensor) -> Outputs:
        """Decodes arrays to texts, scores and truncations `(batch,)`."""
        count = tf.shape(source)[0]
        outputs = self._outputs(self._decode(source, _random_seeds(count)), count)
        return {name: outputs[name][:, 0] for name in ("text", "score", "truncated")}

    def _serve_tokens(self, source: tf.Tensor) -> Outputs:
        """Decodes arrays to token ids, the signature without a tokenizer."""
        return self._tokens(source, _random_seeds(tf.shape(source)[0]))

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
        result = self._search(_padded(source, rows), prefixes, _seeds(seed, rows))
        return self._outputs(result, tf.shape(source)[0])

    def _score_texts(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Scores texts `(batch,)`, and their tokens, given arrays."""
        target = check_same_batch(target, "target", source, "source")
        tokens = self.target_tokenizer.tokenize(target, add_end=True)
        tokens = check_language(self.target_tokenizer, target, tokens, "target")
        targets = self._pad(self._check_length(tokens, "target", "target"), "target")
        count, length = tf.unstack(tokens.bounding_shape())
        sources = _padded(source, tf.shape(targets, tf.int64)[0])
        scores = self._score(sources, self._shift(targets), targets)[:count, :length]
        return {
            "score": tf.reduce_sum(scores, axis=1),
            "tokens": self._to_strings("target", targets[:count, :length]),
            "token_scores": scores,
        }

    def _decode(self, source: tf.Tensor, seed: tf.Tensor) -> SearchResult:
        rows = _rows(source)
        prefixes = tf.zeros(tf.stack([rows, 0]), tf.int32)
        return self._search(_padded(source, rows), prefixes, _seeds(seed, rows))


def _random_seeds(count: tf.Tensor) -> tf.Tensor:
    return tf.random.uniform([count], maxval=tf.int32.max, dtype=tf.int32)


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


def _seeds(seed: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    missing = tf.cast(rows, tf.int32) - tf.shape(seed)[0]
    return tf.pad(seed, [[0, missing]])
