"""Tokens taken apart into the characters from which sampling makes them anew."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.token_rows import TokenRows

_SPACE = "▁"  # With it begins, in SentencePiece, a token that begins a word.


class Spelled(NamedTuple):
    """Rows of symbols, end to end.

    Attributes:
        symbols: characters, and tokens that are not taken apart: int64 `(symbols,)`.
        rows: the row of each: int64 `(symbols,)`.
        places: place of each in its row, from 0: int64 `(symbols,)`.
        units: number of the unit of each, from 0: int64 `(symbols,)`. A token never
            reaches from one unit into the next.
    """

    symbols: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    units: np.ndarray


class Spelling:
    """Takes tokens apart.

    The symbol of a character is its id in `ids`; a token that is not ordinary, or has
    a character without an id, is its own symbol and its own unit.

    Args:
        tokens: all tokens in the order of their ids.
        ordinary: whether each stands for a piece of text.
        ids: symbols of the characters: other numbers than the ids of tokens, or the
            ids of the tokens that are these characters.
    """

    def __init__(
        self, tokens: Sequence[str], ordinary: Sequence[bool], ids: dict[str, int]
    ):
        spelled = [
            [ids[c] for c in token] if whole and all(c in ids for c in token) else [n]
            for n, (token, whole) in enumerate(zip(tokens, ordinary, strict=True))
        ]
        lengths = np.array([len(symbols) for symbols in spelled])
        self._symbols = TokenRows(np.concatenate(spelled), lengths)
        self._alone = np.ones(max(len(tokens), *ids.values()) + 1, bool)
        self._alone[list(ids.values())] = False
        self._begins = np.zeros_like(self._alone)
        words = [t for t, whole in zip(tokens, ordinary, strict=True) if whole]
        if _SPACE in ids and not any(_SPACE in word[1:] for word in words):
            self._begins[ids[_SPACE]] = True

    def spell(self, rows: TokenRows) -> Spelled:
        """The symbols of the rows."""
        spelled = self._symbols.take(rows.token_ids)
        symbols = spelled.token_ids
        counts = rows.sums(spelled.lengths)
        of_row = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(symbols)) - (np.cumsum(counts) - counts)[of_row]
        alone = self._alone[symbols]
        first = alone | self._begins[symbols] | (places == 0)
        first[1:] |= alone[:-1]
        return Spelled(symbols, of_row, places, np.cumsum(first) - 1)
