"""Operations of TensorFlow that several parts of a tokenizer have in common."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text

# `split_texts` replaces NUL by the code point of a surrogate, U+D801.
NUL = r"\x{D801}"
_NUL_MARK = b"\xed\xa0\x81"
_ANY = r"(?s).*"


class NoGraphForm(ValueError):
    """A part of a tokenizer that TensorFlow cannot compute with equal results."""


def replace(texts: tf.Tensor, pattern: str, replacement: str | bytes) -> tf.Tensor:
    """Replaces the matches of a regular expression of RE2."""
    return tf.strings.regex_replace(texts, pattern, replacement)


def split_texts(texts: tf.Tensor, pattern: str, kept: str = _ANY) -> tf.RaggedTensor:
    """Splits at each match of a regular expression of RE2; returns those of `kept`.

    The expressions match NUL by `NUL`.
    """
    # The operation drops NUL with the text behind it.
    rows = tf_text.regex_split(replace(texts, r"\x00", _NUL_MARK), pattern, kept)
    return rows.with_flat_values(replace(rows.flat_values, NUL, b"\x00"))


def merge_parts(inner: tf.RaggedTensor, outer: tf.RaggedTensor) -> tf.RaggedTensor:
    """Joins the rows of `inner`, one for each flat value of `outer`, to its rows."""
    splits = tf.gather(inner.row_splits, outer.row_splits)
    return tf.RaggedTensor.from_row_splits(inner.flat_values, splits, validate=False)


def lookup_table(
    keys: Sequence[str | bytes | int],
    values: Sequence[int],
    dtype: tf.DType,
    default: int,
) -> tf.lookup.StaticHashTable:
    """Returns a table of keys and their values."""
    if not keys:  # which TensorFlow does not accept
        keys, values = ["" if dtype == tf.string else -1], [default]
    value_dtype = tf.int64 if dtype == tf.int64 else tf.int32
    entries = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, dtype), tf.constant(values, value_dtype)
    )
    return tf.lookup.StaticHashTable(entries, default)
