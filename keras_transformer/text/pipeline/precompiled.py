"""The normalizer `Precompiled`: the compiled rules of SentencePiece, in TensorFlow."""

import base64
import struct

import numpy as np
import tensorflow as tf

from keras_transformer.text.pipeline.characters import CONTROL_OF_TEXT, EXTEND, PREPEND
from keras_transformer.text.pipeline.operations import NUL, split_texts
from keras_transformer.types import Config

# A character with those that belong to it, such as combining marks. The package
# `tokenizers` replaces a cluster of at most 5 bytes as a whole, by the replacement of
# its shortest prefix that has one; otherwise it replaces each character.
_CLUSTER = rf"\r\n|[{PREPEND}]*[^{NUL}{CONTROL_OF_TEXT}][{EXTEND}]+"
_LONGEST_CLUSTER = 5
_NONE = b"\xff"  # which is not UTF-8
_MAX_NODES = 2_000_000
_CHUNK = 4096


class PrecompiledNormalizer(tf.Module):
    """Replaces characters and short clusters of characters.

    Args:
        config: a normalizer of a `tokenizer.json`, of the type `Precompiled`.

    Raises:
        ValueError: if the rules are damaged.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        rules = _read_rules(base64.b64decode(config["precompiled_charsmap"]))
        entries = tf.lookup.KeyValueTensorInitializer(
            tf.constant([b"\xff\xff", *rules], tf.string),
            tf.constant([_NONE, *rules.values()], tf.string),
        )
        self._rules = tf.lookup.StaticHashTable(entries, _NONE)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        parts = split_texts(texts, _CLUSTER)
        flat = parts.flat_values
        is_short = tf.strings.regex_full_match(flat, _CLUSTER)
        is_short &= tf.strings.length(flat) <= _LONGEST_CLUSTER
        found = tf.fill(tf.shape(flat), _NONE)
        for count in (3, 2, 1):  # characters of a prefix
            prefix = tf.strings.substr(flat, 0, count, unit="UTF8_CHAR")
            new = self._rules.lookup(prefix)
            found = tf.where(is_short & (new != _NONE), new, found)
        is_found = found != _NONE
        characters = tf.strings.unicode_split(tf.where(is_found, "", flat), "UTF-8")
        new = self._rules.lookup(characters.flat_values)
        new = tf.where(new == _NONE, characters.flat_values, new)
        rest = tf.strings.reduce_join(characters.with_flat_values(new), axis=1)
        replaced = parts.with_flat_values(tf.where(is_found, found, rest))
        return tf.strings.reduce_join(replaced, axis=1)


def _read_rules(content: bytes) -> dict[bytes, bytes]:
    """Returns the replacements of texts of at most 5 bytes."""
    # The content is the size of a trie in bytes, the trie (a double array of
    # https://github.com/s-yata/darts-clone), and the replacements, each with a zero
    # byte behind it. The values of the trie are their positions.
    (size,) = struct.unpack_from("<I", content)
    if size % 4 or not 0 < size <= len(content) - 4:
        raise ValueError("`precompiled_charsmap` is damaged")
    units = np.frombuffer(content, "<u4", size // 4, offset=4).astype(np.int64)
    replacements = content[4 + size :]
    letters = np.arange(1, 256)
    bases, keys, rules = _next(np.zeros(1, np.int64), units[:1]), [b""], {}
    for _ in range(_LONGEST_CLUSTER):
        next_bases, next_keys = [], []
        for start in range(0, len(keys), _CHUNK):
            places = bases[start : start + _CHUNK, None] ^ letters
            found = units[np.minimum(places, len(units) - 1)]
            is_child = (places < len(units)) & (found & (1 << 31 | 0xFF) == letters)
            rows, columns = np.nonzero(is_child)
            children = [
                keys[start + row] + bytes([column + 1])
                for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
            ]
            nodes = found[is_child]
            positions = _next(places[is_child], nodes)
            for key, node, position in zip(
                children, nodes.tolist(), positions.tolist(), strict=True
            ):
                if node >> 8 & 1:
                    value = int(units[position]) & ~(1 << 31)
                    rules[key] = replacements[value : replacements.index(0, value)]
            next_bases.append(positions)
            next_keys += children
        if not next_keys or len(next_keys) > _MAX_NODES:
            break
        bases, keys = np.concatenate(next_bases), next_keys
    return rules


def _next(places: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns the places from which the children of nodes are counted."""
    return places ^ (units >> 10) << ((units & 1 << 9) >> 6)
