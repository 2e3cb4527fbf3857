"""Rows of token ids of different lengths."""

from typing import NamedTuple, Self

import numpy as np


class TokenRows:
    """Rows of token ids, kept end to end in one array.

    Args:
        token_ids: the ids of all rows: int32 `(tokens,)`.
        lengths: ids in each row: integer `(rows,)`.
    """

    def __init__(self, token_ids: np.ndarray, lengths: np.ndarray):
        self.token_ids = token_ids
        self.lengths = lengths
        self._starts = np.cumsum(lengths) - lengths

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """Concatenates the rows of all parts."""
        return cls(
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums `values`, one for each token, over each row: `(rows,)`."""
        sums = np.concatenate([[0], np.cumsum(values)])
        return sums[self._starts + self.lengths] - sums[self._starts]

    def take(self, numbers: np.ndarray) -> "TokenRows":
        """Returns the rows with these numbers."""
        lengths = self.lengths[numbers]
        shifts = self._starts[numbers] - (np.cumsum(lengths) - lengths)
        places = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
        return TokenRows(self.token_ids[places], lengths)

    def pad(self, numbers: np.ndarray, length: int, pad_token_id: int) -> np.ndarray:
        """Pads the rows with these numbers, empty if negative: int32 `(batch, length)`.

        The first `length` ids of a row are kept.
        """
        columns = np.arange(length)
        places = self._starts[numbers, None] + columns
        lengths = np.where(numbers < 0, 0, self.lengths[numbers])
        token_ids = self.token_ids.take(places, mode="clip")
        return np.where(columns < lengths[:, None], token_ids, np.int32(pad_token_id))


class TokenPairs(NamedTuple):
    """Tokenized pairs, and where they come from.

    Attributes:
        source: token ids of the sources, with end.
        target: token ids of the targets, with start and end.
        lines: corpus and line of each pair, from 0: integer `(pairs, 2)`.
    """

    source: TokenRows
    target: TokenRows
    lines: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per side, for the target those of the decoder: `(pairs, 2)`."""
        return np.stack([self.source.lengths, self.target.lengths - 1], axis=1)

    def take(self, numbers: np.ndarray) -> "TokenPairs":
        """Returns the pairs with these numbers."""
        return TokenPairs(
            self.source.take(numbers), self.target.take(numbers), self.lines[numbers]
        )
