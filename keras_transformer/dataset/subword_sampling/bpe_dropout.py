"""Byte-pair encoding that leaves out merges at random."""

from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.subword_sampling.hashing import mix, uniform
from keras_transformer.dataset.subword_sampling.spelling import Spelling
from keras_transformer.dataset.token_rows import TokenRows
from keras_transformer.text import Subwords

_NONE = -1
_NEVER = np.iinfo(np.int64).max


class _Words(NamedTuple):
    """Words that are not finished, end to end.

    Attributes:
        symbols: tokens so far: int64 `(symbols,)`.
        merges: what each makes with the next one, if anything: int64 `(symbols,)`.
        places: where each is among all characters: int64 `(symbols,)`.
        units: number of the word of each: int64 `(symbols,)`.
    """

    symbols: np.ndarray
    merges: np.ndarray
    places: np.ndarray
    units: np.ndarray

    def take(self, which: np.ndarray) -> "_Words":
        return _Words(*(values[which] for values in self))


class BPEDropout:
    """Splits rows anew, all words of all rows side by side.

    In each step each possible merge is left out with a given probability; of the
    others, each word undergoes that which comes first in the model. A word of which
    all merges are left out is finished.

    Args:
        subwords: a BPE model.

    References:
        Provilkov et al., 2020, "BPE-Dropout: Simple and Effective Subword
        Regularization", algorithm 1.
    """

    def __init__(self, subwords: Subwords):
        _, tokens, scores, ordinary = subwords
        ids = {token: n for n, token in enumerate(tokens) if ordinary[n]}
        characters = {token: n for token, n in ids.items() if len(token) == 1}
        self._spelling = Spelling(tokens, ordinary, characters)
        self._size = len(tokens)
        merges = {
            self._size * ids[token[:cut]] + ids[token[cut:]]: n
            for token, n in ids.items()
            for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids
        }
        self._pairs = np.array(sorted(merges), np.int64)
        self._merges = np.array([merges[pair] for pair in sorted(merges)], np.int64)
        self._ranks = np.argsort(np.argsort(np.negative(scores), kind="stable"))

    def split(self, rows: TokenRows, keys: np.ndarray, dropout: float) -> TokenRows:
        """The rows, split at random.

        Args:
            rows: tokens as the model splits.
            keys: what the split of each row depends on: uint64 `(rows,)`.
            dropout: probability with which a merge is left out, from 0 to 1.
        """
        symbols, of_row, places, units = self._spelling.spell(rows)
        random = mix(keys[of_row], places)
        token_ids = np.full(len(symbols), _NONE, np.int32)
        numbers = np.arange(len(symbols))
        words = _Words(symbols, np.full_like(symbols, _NONE), numbers, units)
        self._find_merges(words, numbers)
        step = 0
        while len(words.symbols):
            left_out = uniform(mix(random[words.places], step)) < dropout
            words, finished = self._step(words, (words.merges != _NONE) & ~left_out)
            token_ids[finished.places] = finished.symbols
            step += 1
        kept = token_ids != _NONE
        lengths = np.bincount(of_row[kept], minlength=len(rows.lengths))
        return TokenRows(token_ids[kept], lengths)

    def _step(self, words: _Words, possible: np.ndarray) -> tuple[_Words, _Words]:
        """Does the first possible merge of each word; words without are finished."""
        starts = np.flatnonzero(np.diff(words.units, prepend=-1))
        lengths = np.diff(starts, append=len(possible))
        order = (self._ranks[words.merges] << 32) + np.arange(len(possible))
        first = np.minimum.reduceat(np.where(possible, order, _NEVER), starts)
        going_on = np.repeat(first != _NEVER, lengths)
        finished = words.take(~going_on)
        left = first[first != _NEVER] & 0xFFFFFFFF
        words.symbols[left] = words.merges[left]
        going_on[left + 1] = False
        words = words.take(going_on)
        merged = (np.cumsum(going_on) - 1)[left]
        self._find_merges(words, merged)
        self._find_merges(words, merged[merged > 0] - 1)
        return words, finished

    def _find_merges(self, words: _Words, numbers: np.ndarray) -> None:
        """Writes down what symbols make with the next ones of their words."""
        if not len(self._pairs):  # of a model whose tokens are characters
            return
        right = np.minimum(numbers + 1, len(words.symbols) - 1)
        pairs = self._size * words.symbols[numbers] + words.symbols[right]
        found = np.searchsorted(self._pairs, pairs).clip(max=len(self._pairs) - 1)
        known = (self._pairs[found] == pairs) & (right != numbers)
        known &= words.units[numbers] == words.units[right]
        words.merges[numbers] = np.where(known, self._merges[found], _NONE)
