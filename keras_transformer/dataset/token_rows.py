"""Rows of token ids of different lengths, and the tokenization of text pairs."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.text_pairs import Pair
from keras_transformer.text import Tokenizer
from keras_transformer.text.tokenizer import check_tokenizer

_CHUNK = 16384  # Pairs per call of a tokenizer.


class TokenRows:
    """Rows of token ids, concatenated: int32 `(tokens,)`, and lengths `(rows,)`."""

    def __init__(self, token_ids: np.ndarray, lengths: np.ndarray) -> None:
        self.token_ids = token_ids
        self.lengths = lengths
        self._starts = np.cumsum(lengths) - lengths

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Concatenates the rows of all parts."""
        return cls(
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums the values `(tokens,)` of the tokens of each row: `(rows,)`."""
        sums = np.concatenate([[0], np.cumsum(values)])
        return sums[self._starts + self.lengths] - sums[self._starts]

    def column(self, index: int) -> np.ndarray:
        """Returns one token of each row, all of which are longer than `index`."""
        return self.token_ids[self._starts + index]

    def take(self, indices: np.ndarray) -> "TokenRows":
        """Returns the rows with these indices."""
        lengths = self.lengths[indices]
        shifts = self._starts[indices] - (np.cumsum(lengths) - lengths)
        positions = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
        return TokenRows(self.token_ids[positions], lengths)

    def pad(self, indices: np.ndarray, length: int, pad_token_id: int) -> np.ndarray:
        """Returns some rows as one int32 array `(batch, length)`, truncated or padded.

        A negative index gives a row of padding.
        """
        columns = np.arange(length)
        positions = self._starts[indices, None] + columns
        lengths = np.where(indices < 0, 0, self.lengths[indices])
        token_ids = self.token_ids.take(positions, mode="clip")
        return np.where(columns < lengths[:, None], token_ids, np.int32(pad_token_id))


class TokenPairs(NamedTuple):
    """Tokenized pairs and the lines they are read from."""

    source: TokenRows  # With end token.
    target: TokenRows  # With start and end token.
    lines: np.ndarray  # Corpus and line of each pair, int `(pairs, 2)`.

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of encoder and decoder sequences, integer `(pairs, 2)`."""
        return np.stack([self.source.lengths, self.target.lengths - 1], axis=1)

    def take(self, indices: np.ndarray) -> "TokenPairs":
        """Returns the pairs with these indices."""
        return TokenPairs(
            self.source.take(indices), self.target.take(indices), self.lines[indices]
        )


class Tokenizers(NamedTuple):
    """The tokenizers of source and target."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def checked(cls, source: Tokenizer, target: Tokenizer) -> Self:
        """Checks two arguments of `parallel_dataset`, and returns the tokenizers."""
        check_tokenizer("source_tokenizer", source)
        check_tokenizer("target_tokenizer", target)
        return cls(source, target)

    @property
    def pad_token_ids(self) -> tuple[int, int]:
        """Ids of the padding of source and target."""
        return self.source.pad_token_id, self.target.pad_token_id

    def tokenize(self, pairs: Sequence[Pair], lines: np.ndarray) -> TokenPairs:
        """Tokenizes pairs; `lines`, int `(pairs, 2)`, are their corpora and lines."""
        return TokenPairs(
            _tokenize(self.source, (source for source, _ in pairs), add_start=False),
            _tokenize(self.target, (target for _, target in pairs), add_start=True),
            lines,
        )

    def text_lengths(self, pairs: TokenPairs) -> np.ndarray:
        """Returns the numbers of tokens without start and end, integer `(pairs, 2)`.

        The source has no end token if it is a prompt.
        """
        source, target, _ = pairs
        special = [self.source.start_token_id, self.source.end_token_id]
        is_text = np.isin(source.token_ids, special, invert=True)
        return np.stack([source.sum(is_text), target.lengths - 2], axis=1)

    def find_blank(self, pairs: TokenPairs) -> np.ndarray:
        """Returns which sources have a language token alone, boolean `(pairs,)`."""
        is_language = np.isin(pairs.source.column(0), self.source.language_token_ids)
        return is_language & (pairs.source.lengths == 2)

    def check_language_tokens(self, texts: Sequence[Pair], pairs: TokenPairs) -> None:
        """Raises `ValueError` if a text begins with an unknown language token."""
        sides = (("source", pairs.source, 0), ("target", pairs.target, 1))
        for side, (name, rows, start) in enumerate(sides):
            tokenizer = self[side]
            if tokenizer.language_token_pattern is None:
                continue
            first = rows.column(start)
            for row in np.flatnonzero(first == tokenizer.unknown_token_id).tolist():
                where = f"line {pairs.lines[row, 1] + 1}"
                tokenizer.check_language_token(
                    texts[row][side], [first[row]], name, where
                )


def _tokenize(tokenizer: Tokenizer, texts: Iterator[str], add_start: bool) -> TokenRows:
    """Returns the token ids of texts, with end token."""
    rows = []
    with tf.device("CPU"):
        while chunk := list(itertools.islice(texts, _CHUNK)):
            ragged = tokenizer.tokenize(chunk, add_start=add_start, add_end=True)
            rows.append(TokenRows(ragged.values.numpy(), ragged.row_lengths().numpy()))
    return TokenRows.concatenate(rows)
