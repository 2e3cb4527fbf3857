"""Unigram sampling: splits drawn from a unigram language model."""

import itertools
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.subword_sampling.characters import (
    Characters,
    CharacterSplitter,
)
from keras_transformer.dataset.subword_sampling.hashing import hash_integers, to_uniform
from keras_transformer.dataset.token_rows import TokenRows
from keras_transformer.text import Subwords

_NONE = -1
_LOG_ZERO = -1e30  # Less than every log-probability, and finite.


class _Tokens(NamedTuple):
    """The tokens that match the text at any position, as int64 `(tokens,)`."""

    first: np.ndarray  # Position of the first character.
    last: np.ndarray  # Position of the last character.
    ids: np.ndarray

    def take(self, indices: np.ndarray | slice) -> "_Tokens":
        return _Tokens(*(values[indices] for values in self))


class UnigramSampling:
    """Splits rows of token ids again, with a unigram language model.

    The probability of a split is proportional to its probability under the model to the
    power of `alpha`. A split is drawn by forward filtering and backward sampling. All
    words of all rows are processed in parallel.

    References:
        Kudo, 2018, "Subword Regularization: Improving Neural Network Translation
        Models with Multiple Subword Candidates", section 3.2.
    """

    def __init__(self, subwords: Subwords) -> None:
        _, tokens, scores, ordinary = subwords
        ids = {token: id for id, token in enumerate(tokens) if ordinary[id]}
        characters = sorted(set("".join(ids)))
        symbols = {c: len(tokens) + number for number, c in enumerate(characters)}
        self._splitter = CharacterSplitter(tokens, ordinary, symbols)
        self._scores = np.array(scores)
        self._size = len(tokens) + len(symbols)
        prefixes = sorted({t[:end] for t in ids for end in range(1, len(t) + 1)})
        nodes = {prefix: node for node, prefix in enumerate(["", *prefixes])}
        # Edges of the trie of all tokens as node * size + symbol, and their end nodes.
        edges = {
            self._size * nodes[p[:-1]] + symbols[p[-1]]: nodes[p] for p in prefixes
        }
        self._edges = np.array(sorted(edges), np.int64)
        self._nodes = np.array([edges[edge] for edge in sorted(edges)], np.int64)
        self._ids = np.array([ids.get(prefix, _NONE) for prefix in nodes], np.int64)

    def split(self, rows: TokenRows, keys: np.ndarray, alpha: float) -> TokenRows:
        """Splits rows again. The keys, uint64 `(rows,)`, determine the splits.

        A lower `alpha` gives more varied splits.
        """
        characters = self._splitter.split(rows)
        begins_word = np.diff(characters.words, prepend=-1) > 0
        lattice = _Lattice(self._match_tokens(characters), begins_word)
        probabilities = lattice.filter(alpha * self._scores)
        hashes = hash_integers(keys[characters.rows], characters.positions)
        token_ids = lattice.sample(probabilities, to_uniform(hashes))
        is_token = token_ids != _NONE
        lengths = np.bincount(characters.rows[is_token], minlength=len(rows.lengths))
        return TokenRows(token_ids[is_token], lengths)

    def _match_tokens(self, characters: Characters) -> _Tokens:
        """Finds the tokens that match at any position with the trie of all tokens."""
        symbols, words = characters.symbols, characters.words
        first = np.arange(len(symbols))
        unsplit = first[symbols < len(self._scores)]
        found = [_Tokens(unsplit, unsplit, symbols[unsplit])]
        node, last = np.zeros_like(first), first
        while len(first):
            edges = self._size * node + symbols[last]
            indices = np.searchsorted(self._edges, edges).clip(max=len(self._edges) - 1)
            matches = self._edges[indices] == edges
            first, last, node = (
                first[matches],
                last[matches],
                self._nodes[indices[matches]],
            )
            is_token = self._ids[node] != _NONE
            found.append(
                _Tokens(first[is_token], last[is_token], self._ids[node[is_token]])
            )
            continues = last + 1 < len(symbols)
            continues[continues] = words[first[continues]] == words[last[continues] + 1]
            first, last, node = first[continues], last[continues] + 1, node[continues]
        return _Tokens(*map(np.concatenate, zip(*found, strict=True)))


class _Lattice:
    """The lattices of all splits of all words; `begins_word` is `(positions,)`."""

    def __init__(self, tokens: _Tokens, begins_word: np.ndarray) -> None:
        positions = np.arange(len(begins_word))
        in_word = positions - np.maximum.accumulate(np.where(begins_word, positions, 0))
        # Sorted by the position of the last character in its word, so that all words
        # are processed in parallel.
        order = np.lexsort((tokens.last, in_word[tokens.last]))
        self._tokens = tokens.take(order)
        self._begins_word = begins_word
        # Starts of the groups of tokens with the same last character, and starts of the
        # groups of these groups with the same position in a word.
        self._groups = np.flatnonzero(np.diff(self._tokens.last, prepend=-1))
        distances = in_word[self._tokens.last[self._groups]]
        self._steps = np.flatnonzero(np.diff(distances, prepend=-1))

    def filter(self, scores: np.ndarray) -> np.ndarray:
        """Returns the probability of each token among those with its end, `(tokens,)`.

        `scores` are the logarithms of the weights of the tokens, `(vocabulary_size,)`.
        """
        # Logarithms of the total weight of all splits up to each position.
        totals = np.full(len(self._begins_word), _LOG_ZERO)
        probabilities = np.empty(len(self._tokens.ids))
        bounds = np.append(self._groups, len(probabilities))
        for start, stop in itertools.pairwise([*self._steps, len(self._groups)]):
            span = slice(bounds[start], bounds[stop])
            first, last, ids = self._tokens.take(span)
            weights = scores[ids] + np.where(
                self._begins_word[first], 0, totals[first - 1]
            )
            groups = bounds[start:stop] - bounds[start]
            sizes = np.diff(bounds[start : stop + 1])
            maxima = np.maximum.reduceat(weights, groups)
            exponentials = np.exp(weights - np.repeat(maxima, sizes))
            sums = np.add.reduceat(exponentials, groups)
            totals[last[groups]] = maxima + np.log(sums)
            probabilities[span] = exponentials / np.repeat(sums, sizes)
        return probabilities

    def sample(self, probabilities: np.ndarray, random: np.ndarray) -> np.ndarray:
        """Draws a split of each word, from its last token to its first.

        `probabilities` come from `filter`, and `random`, `(positions,)`, is uniform in
        [0, 1). Returns the token that begins at each position, or -1, int32
        `(positions,)`.
        """
        first, last, ids = self._tokens
        group_of = np.empty(len(self._begins_word), np.int64)
        group_of[last[self._groups]] = np.arange(len(self._groups))
        ends = np.append(self._groups[1:], len(ids)) - 1
        sums = np.cumsum(probabilities)  # The sum of each group is 1.
        drawn = np.full(len(self._begins_word), _NONE, np.int32)
        positions = np.flatnonzero(np.append(self._begins_word, True)[1:])
        while len(positions):
            group = group_of[positions]
            token = np.searchsorted(sums, group + random[positions], side="right")
            token = np.clip(token, self._groups[group], ends[group])
            drawn[first[token]] = ids[token]
            positions = first[token][~self._begins_word[first[token]]] - 1
        return drawn
