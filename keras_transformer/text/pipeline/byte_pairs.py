"""Byte-pair encoding of words, in TensorFlow."""

import re
from collections.abc import Mapping

import tensorflow as tf

from keras_transformer.text.pipeline.operations import (
    NoGraphForm,
    lookup_table,
    merge_parts,
    split_texts,
)
from keras_transformer.types import Config
from keras_transformer_runtime.tokenizers.keras_hub_tokenizers import BYTES

_NEVER = tf.int32.max
_BYTE = "<0x{:02X}>"


class BytePairEncoder(tf.Module):
    """Merges the symbols of words, bytes or characters, to tokens.

    Args:
        config: the model of a `tokenizer.json`, of the type `BPE`.
        is_byte_level: bool, whether the symbols are bytes.
    """

    def __init__(self, config: Config, is_byte_level: bool) -> None:
        super().__init__()
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if config.get(name):
                raise NoGraphForm(f"the model BPE with {name}")
        vocabulary: dict[str, int] = config["vocab"]
        unknown = config.get("unk_token")
        self._unknown_id = None if unknown is None else vocabulary[unknown]
        self._fuses_unknown = bool(config.get("fuse_unk"))
        self._is_byte_level = is_byte_level
        self._size = max(vocabulary.values()) + 1
        ids, merged = [], []
        for merge in config["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            ids.append(vocabulary[left] * self._size + vocabulary[right])
            merged.append(vocabulary[left + right])
        # The last one of equal pairs counts.
        ranks = {pair: rank for rank, pair in enumerate(ids)}
        self._ranks = lookup_table([*ranks], [*ranks.values()], tf.int64, int(_NEVER))
        self._merged = tf.constant([*merged, 0], tf.int32)
        if is_byte_level:
            found = {byte: vocabulary.get(char, -1) for char, byte in BYTES.items()}
            self._byte_ids = tf.constant([found[b] for b in range(256)], tf.int32)
        else:
            names = [*map(_BYTE.format, range(256))] if config["byte_fallback"] else []
            found = {byte: vocabulary.get(name, -1) for byte, name in enumerate(names)}
            if -1 in found.values() and len({*found.values()}) > 1:
                raise NoGraphForm("the model BPE with a part of the bytes")
            self._byte_ids = tf.constant([*found.values()] or [-1] * 256, tf.int32)
            self._has_bytes = bool(found) and -1 not in found.values()
            characters = {t: id for t, id in vocabulary.items() if len(t) == 1}
            self._characters = lookup_table(
                [*characters], [*characters.values()], tf.string, -1
            )
        self._words = None
        if config.get("ignore_merges"):
            words = _words_of(vocabulary, is_byte_level)
            self._words = lookup_table([*words], [*words.values()], tf.string, -1)
        self._is_split = has_word_marks(vocabulary)

    def split(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Splits words further where no token crosses; returns `(words, None)`."""
        if self._is_split:
            return split_texts(words, "▁*[^▁]+|▁+")
        return tf.RaggedTensor.from_uniform_row_length(words, 1)

    def ids(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Converts words, string `(words,)`, to ids, int32 `(words, None)`."""
        if self._words is None:
            return self._merge(self._symbols(words))
        whole = self._words.lookup(words)
        symbols = self._symbols(tf.where(whole < 0, words, ""))
        found = tf.ragged.boolean_mask(whole[:, None], whole[:, None] >= 0)
        return tf.concat([self._merge(symbols), found], axis=1)

    def _symbols(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the bytes or characters of words."""
        if self._is_byte_level:
            ids = self._ids_of_bytes(words)
        else:
            characters = tf.strings.unicode_split(words, "UTF-8")
            flat = characters.flat_values
            known = self._characters.lookup(flat)[:, None]
            known = tf.ragged.boolean_mask(known, known >= 0)
            missing = tf.where(known.row_lengths() > 0, "", flat)
            if self._has_bytes:
                rest = self._ids_of_bytes(missing)
            else:
                unknown = tf.where(missing == "", 0, -1)[:, None]
                rest = tf.ragged.boolean_mask(unknown, unknown < 0)
            ids = merge_parts(tf.concat([known, rest], axis=1), characters)
        if self._unknown_id is None:
            return tf.ragged.boolean_mask(ids, ids >= 0)
        flat, rows = ids.flat_values, ids.value_rowids()
        if self._fuses_unknown:
            repeats = (flat[1:] < 0) & (flat[:-1] < 0) & (rows[1:] == rows[:-1])
            keep = tf.concat([tf.ones_like(flat[:1], tf.bool), ~repeats], 0)
            ids = tf.ragged.boolean_mask(ids, ids.with_flat_values(keep))
        known = tf.maximum(ids.flat_values, -1)
        return ids.with_flat_values(tf.where(known < 0, self._unknown_id, known))

    def _ids_of_bytes(self, words: tf.Tensor) -> tf.RaggedTensor:
        joined = tf.strings.reduce_join(words)
        numbers = tf.io.decode_raw(joined[None], tf.uint8)[0]
        ids = tf.gather(self._byte_ids, tf.cast(numbers, tf.int32))
        lengths = tf.cast(tf.strings.length(words), tf.int64)
        return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)

    def _merge(self, symbols: tf.RaggedTensor) -> tf.RaggedTensor:
        """Merges one pair of each word at a time: the one of the lowest rank."""
        count = symbols.nrows()

        def ranks_of(ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            pairs = tf.cast(ids[:-1], tf.int64) * self._size + tf.cast(
                ids[1:], tf.int64
            )
            found = tf.cast(self._ranks.lookup(pairs), tf.int32)
            found = tf.where(rows[:-1] == rows[1:], found, _NEVER)
            return tf.concat([found, tf.fill(tf.shape(ids[:1]), _NEVER)], axis=0)

        def merge(
            ids: tf.Tensor, rows: tf.Tensor, ranks: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            lowest = tf.gather(tf.math.unsorted_segment_min(ranks, rows, count), rows)
            size = tf.size(ids)
            places = tf.range(size)
            is_lowest = (ranks == lowest) & (ranks < _NEVER)
            first = tf.math.unsorted_segment_min(
                tf.where(is_lowest, places, size), rows, count
            )
            is_left = places == tf.gather(first, rows)
            new = tf.gather(self._merged, tf.where(is_left, ranks, 0))
            ids = tf.where(is_left, new, ids)
            keep = ~tf.concat([tf.zeros_like(is_left[:1]), is_left[:-1]], axis=0)
            ids, rows = tf.boolean_mask(ids, keep), tf.boolean_mask(rows, keep)
            return ids, rows, ranks_of(ids, rows)

        ids, rows = symbols.flat_values, symbols.value_rowids()
        ids, rows, _ = tf.while_loop(
            lambda _ids, _rows, ranks: tf.reduce_any(ranks < _NEVER),
            merge,
            [ids, rows, ranks_of(ids, rows)],
            shape_invariants=[tf.TensorShape([None])] * 3,
        )
        return tf.RaggedTensor.from_value_rowids(ids, rows, count, validate=False)


def _words_of(
    vocabulary: Mapping[str, int], is_byte_level: bool
) -> dict[str, int] | dict[bytes, int]:
    """Returns the texts of the tokens, and their ids."""
    if not is_byte_level:
        return dict(vocabulary)
    return {
        bytes(map(BYTES.__getitem__, token)): id
        for token, id in vocabulary.items()
        if all(character in BYTES for character in token)
    }


def has_word_marks(tokens: Mapping[str, int]) -> bool:
    """Returns whether "▁" is a token, and occurs only where a token begins."""
    return "▁" in tokens and not any(re.search("[^▁]▁", token) for token in tokens)
