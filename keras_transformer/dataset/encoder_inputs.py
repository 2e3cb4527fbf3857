"""The inputs of a `TextEncoder`, computed from texts or words by TensorFlow."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
import tensorflow_text

from keras_transformer.text.tokenizer import Tokenizer

# A byte-level vocabulary has the space in front of a word in the word's first piece.
_SPACE = "Ġ"
# The characters at which Python splits a text into words.
_WHITE_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]"


class EncodedTexts(NamedTuple):
    """Token ids of texts, with start and end.

    Attributes:
        token_ids: ragged int32 tensor `(batch, None)`.
        segment_ids: ragged int32 tensor of the same shape, 0, and another number for
            the tokens of a second text and its end.
        is_cut: bool tensor `(batch,)`, whether the text has more tokens.
    """

    token_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    is_cut: tf.Tensor


class EncodedWords(NamedTuple):
    """Token ids of sentences, with start and end, and the places of their words.

    Attributes:
        token_ids: ragged int32 tensor `(batch, None)`.
        first_pieces: ragged int32 tensor `(batch, words)`, the place of the first token
            of each word.
        is_cut: bool tensor `(batch,)`, whether words at the end are left out.
    """

    token_ids: tf.RaggedTensor
    first_pieces: tf.RaggedTensor
    is_cut: tf.Tensor


def encode_texts(
    tokenizer: Tokenizer,
    texts: tf.Tensor,
    second: tf.Tensor | None = None,
    max_length: int | None = None,
    separators: int = 1,
    second_segment: int = 1,
) -> EncodedTexts:
    """Converts texts, or pairs of texts, to token ids.

    A text is between the start and the end token. A second text and a further end token
    follow. The longer one of a pair is cut first.

    Args:
        tokenizer: the tokenizer.
        texts: string tensor `(batch,)`.
        second: string tensor `(batch,)`, the second texts.
        max_length: int, maximum number of tokens, with start and end.
        separators: int, number of end tokens between two texts.
        second_segment: int, number of the segment of the second text.

    Returns:
        An `EncodedTexts`.
    """
    parts = [tokenizer.tokenize(each) for each in (texts, second) if each is not None]
    ends = [1] if second is None else [separators, 1]
    count = tf.add_n([part.row_lengths() for part in parts])
    is_cut = tf.zeros_like(count, tf.bool)
    if max_length is not None:
        room = max(max_length - 1 - sum(ends), 0)
        is_cut = count > room
        parts = tensorflow_text.RoundRobinTrimmer(room).trim(parts)
    rows = tf.shape(count)[0]
    start = tf.fill([rows, 1], tokenizer.start_token_id)
    columns: list[tf.Tensor | tf.RaggedTensor] = [start]
    segments: list[tf.Tensor | tf.RaggedTensor] = [tf.zeros([rows, 1], tf.int32)]
    for part, size, segment in zip(parts, ends, (0, second_segment), strict=False):
        end = tf.fill([rows, size], tokenizer.end_token_id)
        columns += [part, end]
        segments += [tf.ones_like(part) * segment, tf.fill([rows, size], segment)]
    return EncodedTexts(tf.concat(columns, 1), tf.concat(segments, 1), is_cut)


def white_space_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts at white space, as `str.split` does.

    Args:
        texts: string tensor `(batch,)`.

    Returns:
        Ragged string tensor `(batch, words)`.
    """
    return tf.strings.split(tf.strings.regex_replace(texts, _WHITE_SPACE, " "))


def encode_words(
    tokenizer: Tokenizer, words: tf.RaggedTensor, max_length: int | None = None
) -> EncodedWords:
    """Converts the words of sentences to token ids.

    Each word is tokenized alone. A word without tokens is an unknown token.

    Args:
        tokenizer: the tokenizer.
        words: ragged string tensor `(batch, words)`.
        max_length: int, maximum number of tokens, with start and end.

    Returns:
        An `EncodedWords`.
    """
    texts = words.flat_values
    if _has_spaces(tokenizer):
        texts = tf.strings.join([" ", texts])
    pieces = tokenizer.tokenize(texts)
    is_empty = pieces.row_lengths() == 0
    unknown = tf.ragged.boolean_mask(
        tf.fill([tf.size(texts), 1], tokenizer.unknown_token_id), is_empty[:, None]
    )
    pieces = tf.concat([pieces, unknown], axis=1)
    counts = pieces.row_lengths()
    ends = tf.concat([[0], tf.cumsum(counts)], axis=0)
    begins = tf.gather(ends, words.row_splits)
    first = ends[:-1] - tf.gather(begins, words.value_rowids())
    first_pieces = words.with_flat_values(tf.cast(first, tf.int32) + 1)
    token_ids = tf.RaggedTensor.from_row_splits(pieces.flat_values, begins)
    is_cut = tf.zeros([words.nrows()], tf.bool)
    if max_length is not None:
        room = max(max_length - 2, 0)
        is_cut = token_ids.row_lengths() > room
        token_ids = token_ids[:, :room]
        is_kept = first_pieces <= room
        first_pieces = tf.ragged.boolean_mask(first_pieces, is_kept)
    rows = tf.shape(is_cut)[0]
    start = tf.fill([rows, 1], tokenizer.start_token_id)
    end = tf.fill([rows, 1], tokenizer.end_token_id)
    return EncodedWords(tf.concat([start, token_ids, end], 1), first_pieces, is_cut)


def pad_rows(rows: tf.RaggedTensor, value: int, lengths: Sequence[int]) -> tf.Tensor:
    """Pads rows to a dense tensor with the first of `lengths` that all rows fit in.

    Args:
        rows: ragged int32 tensor `(batch, None)`.
        value: int, the padding.
        lengths: list of int, in ascending order. A row that is longer than the last one
            makes the tensor as long as itself.

    Returns:
        int32 tensor `(batch, length)`.
    """
    longest = rows.bounding_shape(out_type=tf.int64)[1]
    places = tf.constant(lengths, tf.int64)
    length = tf.reduce_min(tf.where(places >= longest, places, tf.int64.max))
    length = tf.where(length == tf.int64.max, longest, length)
    return rows.to_tensor(value, shape=tf.stack([rows.nrows(), length]))


def _has_spaces(tokenizer: Tokenizer) -> bool:
    """Returns whether a word inside a text begins with a space, as in GPT-2's pieces.

    The words of SentencePiece begin with another character, which its tokenizers add.
    """
    return any(token.startswith(_SPACE) for token in tokenizer.get_vocabulary())
