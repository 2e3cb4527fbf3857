"""Unigram models of words, in TensorFlow."""

import tensorflow as tf

from keras_transformer.text.pipeline.byte_pairs import has_word_marks
from keras_transformer.text.pipeline.operations import (
    NoGraphForm,
    lookup_table,
    split_texts,
)
from keras_transformer.types import Config

UNKNOWN_PENALTY = 10.0  # of the package `tokenizers`, as of SentencePiece


class UnigramEncoder(tf.Module):
    """Splits words into the tokens with the highest sum of scores.

    Args:
        config: the model of a `tokenizer.json`, of the type `Unigram`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.get("byte_fallback") or config.get("unk_id") is None:
            raise NoGraphForm("the model Unigram with bytes or without unknown text")
        vocabulary = {token: id for id, (token, _) in enumerate(config["vocab"])}
        scores = [score for _, score in config["vocab"]]
        self._unknown_id: int = config["unk_id"]
        self._longest = max(map(len, vocabulary))
        self._ids = lookup_table([*vocabulary], [*vocabulary.values()], tf.string, -1)
        self._scores = tf.constant([*scores, -float("inf")], tf.float64)
        self._unknown_score = tf.constant(min(scores) - UNKNOWN_PENALTY, tf.float64)
        self._is_split = has_word_marks(vocabulary)

    def split(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Splits words further where no token crosses; returns `(words, None)`."""
        if self._is_split:
            return split_texts(words, "▁*[^▁]+|▁+")
        return tf.RaggedTensor.from_uniform_row_length(words, 1)

    def ids(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Converts words, string `(words,)`, to ids, int32 `(words, None)`."""
        characters = tf.strings.unicode_split(words, "UTF-8")
        found, scores = self._pieces(characters)
        chosen = self._best_lengths(characters, scores)
        ids = self._trace(characters, found, chosen)
        flat, rows = ids.flat_values, ids.value_rowids()
        unknown = flat == self._unknown_id
        repeats = unknown[1:] & unknown[:-1] & (rows[1:] == rows[:-1])
        keep = tf.concat([tf.ones_like(unknown[:1]), ~repeats], axis=0)
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(keep))

    def _pieces(self, characters: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids and scores of the pieces from each character on.

        They are `(characters, longest)`, the longest piece first.
        """
        flat, rows = characters.flat_values, characters.value_rowids()
        pieces, ids = flat, [self._ids.lookup(flat)]
        for length in range(1, self._longest):
            following = tf.concat([flat[length:], tf.fill([length], "")], axis=0)
            row = tf.concat(
                [rows[length:], tf.fill([length], tf.constant(-1, tf.int64))], axis=0
            )
            is_inside = row[: tf.size(flat)] == rows
            pieces = tf.where(
                is_inside & (pieces != ""), pieces + following[: tf.size(flat)], ""
            )
            ids.append(tf.where(pieces == "", -1, self._ids.lookup(pieces)))
        found = tf.stack(ids[::-1], axis=1)
        missing = tf.size(self._scores) - 1
        scores = tf.gather(self._scores, tf.where(found < 0, missing, found))
        lacking = ids[0] < 0
        last = tf.where(
            lacking, tf.cast(self._unknown_score, tf.float64), scores[:, -1]
        )
        scores = tf.concat([scores[:, :-1], last[:, None]], axis=1)
        return tf.where(found < 0, self._unknown_id, found), scores

    def _best_lengths(
        self, characters: tf.RaggedTensor, scores: tf.Tensor
    ) -> tf.Tensor:
        """Returns the length of the best last piece up to each place.

        It is `(longest word, words)`; of equal sums, that of the longest piece.
        """
        starts, lengths = characters.row_starts(), characters.row_lengths()
        longest = self._longest
        lowest = tf.constant(-float("inf"), tf.float64)
        window = tf.fill([tf.size(lengths), longest], lowest)
        window = tf.concat([window[:, 1:], tf.zeros_like(window[:, :1])], axis=1)
        # At least one step, as TensorFlow cannot stack none.
        steps = tf.cast(tf.reduce_max(tf.concat([lengths, [1]], axis=0)), tf.int32)
        columns = tf.range(longest, 0, -1, tf.int64)  # lengths of pieces
        # A piece of length k from a place is in column `longest - k`.
        numbers = tf.range(longest, dtype=tf.int64)
        chosen = tf.TensorArray(tf.int32, steps, element_shape=[None])

        def advance(
            end: tf.Tensor, window: tf.Tensor, chosen: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
            first = tf.cast(end, tf.int64) + 1 - columns  # of each piece
            inside = (first >= 0) & (end < tf.cast(lengths, tf.int32))[:, None]
            places = tf.where(inside, starts[:, None] + first, 0)
            index = tf.stack([places, tf.zeros_like(places) + numbers], axis=2)
            sums = tf.where(inside, tf.gather_nd(scores, index) + window, lowest)
            best = tf.argmax(sums, axis=1, output_type=tf.int32)
            top = tf.reduce_max(sums, axis=1)
            window = tf.concat([window[:, 1:], top[:, None]], axis=1)
            return end + 1, window, chosen.write(end, longest - best)

        _, _, chosen = tf.while_loop(
            lambda end, _window, _chosen: end < steps,
            advance,
            [0, window, chosen],
            shape_invariants=[
                tf.TensorShape([]),
                tf.TensorShape([None, longest]),
                tf.TensorShape(None),
            ],
        )
        return tf.reshape(chosen.stack(), [steps, -1])

    def _trace(
        self, characters: tf.RaggedTensor, found: tf.Tensor, chosen: tf.Tensor
    ) -> tf.RaggedTensor:
        """Follows the best pieces from the ends of the words to their starts."""
        starts = characters.row_starts()
        words = tf.range(tf.size(starts))
        count = tf.size(characters.flat_values)

        def step(ends: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            open_words = tf.boolean_mask(words, ends > 0)
            last = tf.gather(ends, open_words)
            lengths = tf.gather_nd(chosen, tf.stack([last - 1, open_words], axis=1))
            places = tf.cast(tf.gather(starts, open_words), tf.int32) + last - lengths
            pieces = tf.gather_nd(
                found, tf.stack([places, self._longest - lengths], axis=1)
            )
            ids = tf.tensor_scatter_nd_update(ids, places[:, None], pieces)
            return tf.tensor_scatter_nd_sub(ends, open_words[:, None], lengths), ids

        ends = tf.cast(characters.row_lengths(), tf.int32)
        _, ids = tf.while_loop(
            lambda ends, _ids: tf.reduce_any(ends > 0),
            step,
            [ends, tf.fill([count], -1)],
        )
        return tf.ragged.boolean_mask(
            characters.with_flat_values(ids), characters.with_flat_values(ids >= 0)
        )
