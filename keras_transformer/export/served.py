"""The TensorFlow functions of strings that a SavedModel holds."""

import functools
from typing import Any

import tensorflow as tf

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import SearchResult
from keras_transformer.export.quantization import StoredWeights
from keras_transformer.inference.alignment import Alignment, align_batch
from keras_transformer.inference.generation import Request
from keras_transformer.inference.scoring import token_log_probabilities
from keras_transformer.inference.token_ids import length_buckets, power_of_two
from keras_transformer.models import Seq2Seq

LENGTH_WITHOUT_LIMIT = 512
LARGEST_BATCH = 64


# There is nothing here that AutoGraph would have to rewrite, which takes long.
_function = functools.partial(tf.function, autograph=False)


def _input(name: str, dtype: Any = tf.string, rank: int = 1) -> tf.TensorSpec:
    return tf.TensorSpec([None] * rank, dtype, name=name)


class Served(tf.Module):
    """Tokenizers, model and search as TensorFlow functions.

    Batches and lengths are padded to a few sizes in the graph around what is compiled.

    Args:
        model: a `Seq2Seq` or an `Ensemble` with tokenizers.
        request: how to decode.
        quantization: how the weights are stored; see `StoredWeights`.

    Attributes:
        functions: all of them, by the names of their signatures.
    """

    def __init__(self, model: Any, request: Request, quantization: str | None = None):
        super().__init__()
        self.source_tokenizer = model.source_tokenizer
        self.target_tokenizer = model.target_tokenizer
        self.weights = StoredWeights(model, quantization)
        self._tokens = {
            side: tf.constant(getattr(model, f"{side}_tokenizer").get_vocabulary())
            for side in ("source", "target")
        }
        if self.source_tokenizer is self.target_tokenizer:
            self._tokens["source"] = self._tokens["target"]
        self._limits = {
            "source": model.max_source_length or LENGTH_WITHOUT_LIMIT,
            "target": model.max_target_length or LENGTH_WITHOUT_LIMIT,
        }
        self._vocabulary_size = model.source_vocabulary_size
        self._pad_token_id = model.pad_token_id
        self._start_token_id = model.start_token_id
        self._most = lambda lengths: model.max_steps(lengths, request.max_length)

        def search(token_ids: Any, prefixes: Any, seed: Any) -> SearchResult:
            return model.search(token_ids, *request, prefixes=prefixes, seed=seed)

        def score(sources: Any, targets: Any, labels: Any) -> Any:
            inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets}
            return token_log_probabilities(model, inputs, labels)

        def align(sources: Any, targets: Any) -> Alignment:
            inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets}
            return align_batch(model, inputs)

        def attention_scores(sources: Any, targets: Any) -> Any:
            inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets}
            _, scores = model(inputs, training=False, return_attention_scores=True)
            return tf.cast(tf.stack(scores["cross"], axis=1), tf.float32)

        def compiled(function: Any) -> Any:
            return compile_function(self.weights.used_in(function), model)

        self._search = compiled(search)
        self._score = compiled(score)
        self._align = compiled(align)
        self._scores = compiled(attention_scores)
        self.functions = {
            "serving_default": self.serve,
            "nbest": self.nbest,
            "tokens": self.tokens,
            "score": self.score,
            "attention": self.attention,
        }
        if isinstance(model, Seq2Seq):
            self.functions["attention_scores"] = _function(
                self._attention_scores, input_signature=[_input("text")]
            )

    @_function(input_signature=[_input("text")])
    def serve(self, text: Any) -> dict[str, Any]:
        """Decodes strings `(batch,)` to strings and scores `(batch,)`."""
        outputs = self._outputs(*self._decode(text))
        return {name: outputs[name][:, 0] for name in ("text", "score")}

    @_function(
        input_signature=[_input("text"), _input("prefix"), _input("seed", tf.int32)]
    )
    def nbest(self, text: Any, prefix: Any, seed: Any) -> dict[str, Any]:
        """Decodes strings `(batch,)` to hypotheses `(batch, num_hypotheses)`."""
        prefix = _one_for_each(prefix, "prefix", text, "text")
        seed = _one_for_each(seed, "seed", text, "text")
        return self._outputs(*self._decode(text, prefix, seed))

    @_function(input_signature=[_input("token_ids", tf.int32, rank=2)])
    def tokens(self, token_ids: Any) -> dict[str, Any]:
        """Decodes padded token ids `(batch, source_length)` to hypotheses."""
        size = self._vocabulary_size
        checked = tf.debugging.Assert(
            tf.reduce_all((token_ids >= 0) & (token_ids < size)),
            [f"`token_ids` must be from 0 to {size - 1}; received", token_ids],
        )
        with tf.control_dependencies([checked]):
            real = tf.ragged.boolean_mask(token_ids, token_ids != self._pad_token_id)
        _, result = self._search_all(self._within_limit(real, "token_ids", "source"))
        count = tf.shape(token_ids)[0]
        longest = tf.reduce_max(result.lengths[:count])
        return {
            "token_ids": result.token_ids[:count, :, :longest],
            "score": result.scores[:count],
            "length": result.lengths[:count],
        }

    @_function(input_signature=[_input("source"), _input("target")])
    def score(self, source: Any, target: Any) -> dict[str, Any]:
        """Scores pairs of strings `(batch,)`, and the tokens of the targets."""
        sources = self.source_tokenizer.tokenize(source, add_end=True)
        sources = self._pad(self._within_limit(sources, "source", "source"), "source")
        target = _one_for_each(target, "target", source, "source")
        tokens = self.target_tokenizer.tokenize(target, add_end=True)
        targets = self._pad(self._within_limit(tokens, "target", "target"), "target")
        count, length = tf.unstack(tokens.bounding_shape())
        scores = self._score(sources, self._shifted(targets), targets)[:count, :length]
        return {
            "score": tf.reduce_sum(scores, axis=1),
            "tokens": self._strings("target", targets[:count, :length]),
            "token_scores": scores,
        }

    @_function(input_signature=[_input("text")])
    def attention(self, text: Any) -> dict[str, Any]:
        """Decodes strings `(batch,)`, and aligns the tokens of both sides."""
        outputs, ids, (count, length, width) = self._best(text)
        aligned = self._align(*ids)
        return {
            **outputs,
            "attention": aligned.attention[:count, :length, :width],
            "positions": aligned.positions[:count, :length],
        }

    def _attention_scores(self, text: Any) -> dict[str, Any]:
        """Decodes strings `(batch,)`, and says what every head attends to."""
        outputs, ids, (count, length, width) = self._best(text)
        scores = self._scores(*ids)[:count, :, :, :length, :width]
        return {**outputs, "attention_scores": scores}

    def _best(self, text: Any) -> tuple[dict[str, Any], Any, Any]:
        """The best hypotheses, with tokens; the ids that the model reads; the sizes."""
        tokens, token_ids, result = self._decode(text)
        outputs = self._outputs(tokens, token_ids, result)
        width = tokens.bounding_shape(out_type=tf.int32)[1]
        length = tf.reduce_max(result.lengths[:, 0])
        buckets = length_buckets(LENGTH_WITHOUT_LIMIT)
        size = _round_up(tf.cast(length, tf.int64), buckets)
        found = result.token_ids[:, 0, :size]
        count = tf.shape(text)[0]
        named = {
            **{name: outputs[name][:, 0] for name in ("text", "score")},
            "source_tokens": self._strings("source", token_ids[:count, :width]),
            "tokens": self._strings("target", found[:count, :length]),
        }
        return named, (token_ids, self._shifted(found)), (count, length, width)

    def _decode(
        self, text: Any, prefix: Any = None, seed: Any = None
    ) -> tuple[Any, Any, SearchResult]:
        """The texts' tokens, ragged and padded, and hypotheses (of full texts)."""
        tokens = self.source_tokenizer.tokenize(text, add_end=True)
        tokens = self._within_limit(tokens, "text", "source")
        token_ids, result = self._search_all(tokens, prefix, seed)
        is_token = token_ids != self._pad_token_id
        empty = tf.math.count_nonzero(is_token, axis=1, keepdims=True) <= 1
        result = SearchResult(
            tf.where(empty[:, None], self._pad_token_id, result.token_ids),
            tf.where(empty, 0, result.lengths),
            tf.where(empty, 0.0, result.scores),
        )
        return tokens, token_ids, result

    def _outputs(self, tokens: Any, token_ids: Any, result: Any) -> dict[str, Any]:
        count = tokens.nrows()
        found = result.token_ids[:count]
        flat = tf.reshape(found, [-1, tf.shape(found)[2]])
        texts = self.target_tokenizer.detokenize(flat)
        return {
            "text": tf.reshape(texts, tf.shape(found)[:2]),
            "score": result.scores[:count],
            "length": result.lengths[:count],
        }

    def _search_all(
        self, tokens: Any, prefix: Any = None, seed: Any = None
    ) -> tuple[Any, SearchResult]:
        """The tokens, padded, and the hypotheses of all rows."""
        token_ids = self._pad(tokens, "source")
        rows = tf.shape(token_ids)[0]
        if seed is None:
            seed = tf.random.uniform([rows], maxval=tf.int32.max, dtype=tf.int32)
        else:
            seed = tf.pad(seed, [[0, rows - tf.shape(seed)[0]]])
        if prefix is None:
            prefix = tf.fill([tokens.nrows()], "")
        prefixes = self._prefixes(prefix, tokens.row_lengths(), rows)
        return token_ids, self._search(token_ids, prefixes, seed)

    def _prefixes(self, prefix: Any, source_lengths: Any, rows: Any) -> Any:
        """Token ids `(rows, prefix_length)`, whose length is a power of two."""
        tokens = self.target_tokenizer.tokenize(prefix)
        checked = tf.debugging.assert_less(
            tf.cast(tokens.row_lengths(), tf.int32),
            self._most(tf.cast(source_lengths, tf.int32)),
            "`prefix` must be shorter than the greatest output length",
        )
        with tf.control_dependencies([checked]):
            longest = tokens.bounding_shape(out_type=tf.int64)[1]
        length = _round_up(longest, _powers(4, self._limits["target"]))
        shape = tf.stack([tf.cast(rows, tf.int64), length])
        return tokens.to_tensor(self._pad_token_id, shape=shape)

    def _within_limit(self, tokens: Any, argument: str, side: str) -> Any:
        limit = self._limits[side]
        checked = tf.debugging.assert_less_equal(
            tokens.row_lengths(),
            tf.constant(limit, tf.int64),
            f"`{argument}` must have at most max_{side}_length={limit} tokens",
        )
        with tf.control_dependencies([checked]):
            return tf.identity(tokens)

    def _pad(self, tokens: Any, side: str) -> Any:
        limit = self._limits[side]
        rows, longest = tf.unstack(tokens.bounding_shape(out_type=tf.int64))
        length = _round_up(longest, length_buckets(limit))
        length = tf.minimum(length, tf.constant(limit, tf.int64))
        shape = [_round_up(rows, _powers(1, LARGEST_BATCH)), length]
        return tokens.to_tensor(self._pad_token_id, shape=tf.stack(shape))

    def _strings(self, side: str, token_ids: Any) -> Any:
        """The tokens of int32 ids, in the same shape; `""` for padding."""
        vocabulary = self._tokens[side]
        known = token_ids < tf.size(vocabulary)
        tokens = tf.gather(vocabulary, tf.where(known, token_ids, 0))
        return tf.where(known & (token_ids != self._pad_token_id), tokens, "")

    def _shifted(self, token_ids: Any) -> Any:
        """The decoder's input: the start token, and all tokens but the last."""
        starts = tf.fill([tf.shape(token_ids)[0], 1], self._start_token_id)
        return tf.concat([starts, token_ids[:, :-1]], axis=1)


def _one_for_each(values: Any, name: str, others: Any, other_name: str) -> Any:
    checked = tf.debugging.assert_equal(
        tf.shape(values)[0],
        tf.shape(others)[0],
        f"`{name}` must have one entry for each of `{other_name}`",
    )
    with tf.control_dependencies([checked]):
        return tf.identity(values)


def _round_up(size: Any, steps: list[int]) -> Any:
    """Rounds an int64 scalar up to one of `steps`, or to a multiple of the last."""
    every = tf.constant(steps, tf.int64)
    beyond = -(-size // steps[-1]) * steps[-1]
    return tf.where(
        size <= steps[-1],
        tf.reduce_min(tf.where(every >= size, every, tf.int64.max)),
        beyond,
    )


def _powers(smallest: int, largest: int) -> list[int]:
    """The powers of two from one to the other, or to the first beyond it."""
    powers = [power_of_two(smallest)]
    while powers[-1] < largest:
        powers.append(2 * powers[-1])
    return powers
