"""Splits tokens into the characters from which the samplers build new tokens."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.token_rows import TokenRows

_WORD_MARK = "▁"  # The first character of a token that begins a word.


class Characters(NamedTuple):
    """Rows of symbols, concatenated, as int64 `(symbols,)`."""

    symbols: np.ndarray  # Ids of characters, and of tokens that are not split.
    rows: np.ndarray  # Index of the row of each symbol.
    positions: np.ndarray  # Position of each symbol in its row.
    words: np.ndarray  # Index of the word; no token crosses the boundary of a word.


class CharacterSplitter:
    """Splits tokens into characters.

    A token that is not ordinary, or that contains a character without a symbol, is not
    split. It is a separate symbol and a separate word. The symbol of a character is the
    id of its token, or a number that is not an id.
    """

    def __init__(
        self, tokens: Sequence[str], ordinary: Sequence[bool], symbols: dict[str, int]
    ) -> None:
        split = [
            [symbols[character] for character in token]
            if is_ordinary and all(character in symbols for character in token)
            else [id]
            for id, (token, is_ordinary) in enumerate(
                zip(tokens, ordinary, strict=True)
            )
        ]
        lengths = np.array([len(token) for token in split])
        self._token_symbols = TokenRows(np.concatenate(split), lengths)
        is_unsplit = np.ones(max(len(tokens), *symbols.values()) + 1, bool)
        is_unsplit[list(symbols.values())] = False
        self._is_unsplit = is_unsplit
        self._begins_word = np.zeros_like(is_unsplit)
        pieces = itertools.compress(tokens, ordinary)
        if _WORD_MARK in symbols and not any(_WORD_MARK in t[1:] for t in pieces):
            self._begins_word[symbols[_WORD_MARK]] = True

    def split(self, rows: TokenRows) -> Characters:
        """Returns the symbols of the rows."""
        split = self._token_symbols.take(rows.token_ids)
        symbols = split.token_ids
        counts = rows.sum(split.lengths)
        row_of = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(len(symbols)) - (np.cumsum(counts) - counts)[row_of]
        is_unsplit = self._is_unsplit[symbols]
        is_first = is_unsplit | self._begins_word[symbols] | (positions == 0)
        is_first[1:] |= is_unsplit[:-1]
        return Characters(symbols, row_of, positions, np.cumsum(is_first) - 1)
