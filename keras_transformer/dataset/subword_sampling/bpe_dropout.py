"""BPE-dropout: byte-pair encoding that skips merges at random."""

from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.subword_sampling.characters import CharacterSplitter
from keras_transformer.dataset.subword_sampling.hashing import hash_integers, to_uniform
from keras_transformer.dataset.token_rows import TokenRows
from keras_transformer.text import Subwords

_NONE = -1
_INFINITY = np.iinfo(np.int64).max


class _Words(NamedTuple):
    """Words with possible merges, concatenated, as int64 `(symbols,)`."""

    symbols: np.ndarray  # Tokens so far.
    merges: np.ndarray  # Token that each symbol forms with the next one, or -1.
    positions: np.ndarray  # Position of each symbol among all characters.
    words: np.ndarray  # Index of the word of each symbol.

    def take(self, mask: np.ndarray) -> "_Words":
        return _Words(*(values[mask] for values in self))


class BPEDropout:
    """Splits rows of token ids of a BPE model again, with BPE-dropout.

    Each step skips each possible merge with a given probability. Each word undergoes
    the first of its other merges, in the order of the model. A word is complete when
    all its merges are skipped. All words of all rows are processed in parallel.

    References:
        Provilkov et al., 2020, "BPE-Dropout: Simple and Effective Subword
        Regularization", algorithm 1.
    """

    def __init__(self, subwords: Subwords) -> None:
        _, tokens, scores, ordinary = subwords
        ids = {token: id for id, token in enumerate(tokens) if ordinary[id]}
        characters = {token: id for token, id in ids.items() if len(token) == 1}
        self._splitter = CharacterSplitter(tokens, ordinary, characters)
        self._size = len(tokens)
        merges = {
            self._size * ids[token[:cut]] + ids[token[cut:]]: id
            for token, id in ids.items()
            for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids
        }
        # Pairs of tokens as left * size + right, sorted, and the merged tokens.
        self._pairs = np.array(sorted(merges), np.int64)
        self._merges = np.array([merges[pair] for pair in sorted(merges)], np.int64)
        self._ranks = np.argsort(np.argsort(np.negative(scores), kind="stable"))

    def split(self, rows: TokenRows, keys: np.ndarray, dropout: float) -> TokenRows:
        """Splits rows again. The keys, uint64 `(rows,)`, determine skipped merges."""
        symbols, row_of, positions, words_of = self._splitter.split(rows)
        random = hash_integers(keys[row_of], positions)
        token_ids = np.full(len(symbols), _NONE, np.int32)
        all_positions = np.arange(len(symbols))
        words = _Words(symbols, np.full_like(symbols, _NONE), all_positions, words_of)
        self._update_merges(words, all_positions)
        step = 0
        while len(words.symbols):
            hashes = hash_integers(random[words.positions], step)
            is_kept = (words.merges != _NONE) & (to_uniform(hashes) >= dropout)
            words, complete = self._step(words, is_kept)
            token_ids[complete.positions] = complete.symbols
            step += 1
        is_token = token_ids != _NONE
        lengths = np.bincount(row_of[is_token], minlength=len(rows.lengths))
        return TokenRows(token_ids[is_token], lengths)

    def _step(self, words: _Words, is_kept: np.ndarray) -> tuple[_Words, _Words]:
        """Applies the first merge of each word that `is_kept`, `(symbols,)`, allows."""
        # The results are the words after the merge, and the complete words without one.
        starts = np.flatnonzero(np.diff(words.words, prepend=-1))
        lengths = np.diff(starts, append=len(is_kept))
        # The upper bits are the rank of the merge, the lower ones the symbol's index.
        order = (self._ranks[words.merges] << 32) + np.arange(len(is_kept))
        first = np.minimum.reduceat(np.where(is_kept, order, _INFINITY), starts)
        continues = np.repeat(first != _INFINITY, lengths)
        complete = words.take(~continues)
        left = first[first != _INFINITY] & 0xFFFFFFFF
        words.symbols[left] = words.merges[left]
        continues[left + 1] = False
        words = words.take(continues)
        merged = (np.cumsum(continues) - 1)[left]
        self._update_merges(words, merged)
        self._update_merges(words, merged[merged > 0] - 1)
        return words, complete

    def _update_merges(self, words: _Words, indices: np.ndarray) -> None:
        """Looks up the merges of symbols with the next symbols of their words."""
        if not len(self._pairs):  # All tokens are characters.
            return
        right = np.minimum(indices + 1, len(words.symbols) - 1)
        pairs = self._size * words.symbols[indices] + words.symbols[right]
        found = np.searchsorted(self._pairs, pairs).clip(max=len(self._pairs) - 1)
        is_merge = (self._pairs[found] == pairs) & (right != indices)
        is_merge &= words.words[indices] == words.words[right]
        words.merges[indices] = np.where(is_merge, self._merges[found], _NONE)
