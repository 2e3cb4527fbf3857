"""Splits drawn from all those that a unigram language model allows."""

import itertools
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.subword_sampling.hashing import mix, uniform
from keras_transformer.dataset.subword_sampling.spelling import Spelled, Spelling
from keras_transformer.dataset.token_rows import TokenRows
from keras_transformer.text import Subwords

_NONE = -1
_IMPOSSIBLE = -1e30  # Any real logarithm outweighs it.


class _Tokens(NamedTuple):
    """The tokens that fit somewhere into the text.

    Attributes:
        first: place of the first character of each: int64 `(tokens,)`.
        last: place of its last character: int64 `(tokens,)`.
        ids: its id: int64 `(tokens,)`.
    """

    first: np.ndarray
    last: np.ndarray
    ids: np.ndarray

    def take(self, which: np.ndarray | slice) -> "_Tokens":
        return _Tokens(*(values[which] for values in self))


class UnigramSampling:
    """Splits rows anew, all words of all rows side by side.

    A split is drawn with a probability in proportion to the power `alpha` of that
    which the model gives it, by filtering forwards and sampling backwards.

    Args:
        subwords: a unigram model.

    References:
        Kudo, 2018, "Subword Regularization: Improving Neural Network Translation
        Models with Multiple Subword Candidates", section 3.2.
    """

    def __init__(self, subwords: Subwords):
        _, tokens, scores, ordinary = subwords
        ids = {token: n for n, token in enumerate(tokens) if ordinary[n]}
        letters = {c: len(tokens) + n for n, c in enumerate(sorted(set("".join(ids))))}
        self._spelling = Spelling(tokens, ordinary, letters)
        self._scores = np.array(scores)
        self._size = len(tokens) + len(letters)
        prefixes = sorted({t[:end] for t in ids for end in range(1, len(t) + 1)})
        nodes = {prefix: n for n, prefix in enumerate(["", *prefixes])}
        # The trie: from a node, its prefix's number, a letter leads to another node.
        steps = {
            self._size * nodes[p[:-1]] + letters[p[-1]]: nodes[p] for p in prefixes
        }
        self._steps = np.array(sorted(steps), np.int64)
        self._nodes = np.array([steps[step] for step in sorted(steps)], np.int64)
        self._ids = np.array([ids.get(prefix, _NONE) for prefix in nodes], np.int64)

    def split(self, rows: TokenRows, keys: np.ndarray, alpha: float) -> TokenRows:
        """The rows, split at random.

        Args:
            rows: tokens as the model splits.
            keys: what the split of each row depends on: uint64 `(rows,)`.
            alpha: exponent of the probabilities; the lower, the more splits vary.
        """
        spelled = self._spelling.spell(rows)
        begins = np.diff(spelled.units, prepend=-1) > 0
        lattice = _Lattice(self._find_tokens(spelled), begins)
        probabilities = lattice.filter(alpha * self._scores)
        random = uniform(mix(keys[spelled.rows], spelled.places))
        token_ids = lattice.sample(probabilities, random)
        kept = token_ids != _NONE
        lengths = np.bincount(spelled.rows[kept], minlength=len(rows.lengths))
        return TokenRows(token_ids[kept], lengths)

    def _find_tokens(self, spelled: Spelled) -> _Tokens:
        """All tokens that fit."""
        symbols, units = spelled.symbols, spelled.units
        first = np.arange(len(symbols))
        alone = first[symbols < len(self._scores)]
        found = [_Tokens(alone, alone, symbols[alone])]
        node, last = np.zeros_like(first), first
        while len(first):
            steps = self._size * node + symbols[last]
            places = np.searchsorted(self._steps, steps).clip(max=len(self._steps) - 1)
            known = self._steps[places] == steps
            first, last, node = first[known], last[known], self._nodes[places[known]]
            ends = self._ids[node] != _NONE
            found.append(_Tokens(first[ends], last[ends], self._ids[node[ends]]))
            on = last + 1 < len(symbols)
            on[on] = units[first[on]] == units[last[on] + 1]
            first, last, node = first[on], last[on] + 1, node[on]
        return _Tokens(*map(np.concatenate, zip(*found, strict=True)))


class _Lattice:
    """All splits of all words.

    Args:
        tokens: the tokens that fit.
        begins: whether a word begins at each place: boolean `(places,)`.
    """

    def __init__(self, tokens: _Tokens, begins: np.ndarray):
        places = np.arange(len(begins))
        from_begin = places - np.maximum.accumulate(np.where(begins, places, 0))
        # All words side by side: first the tokens that end with the first characters.
        order = np.lexsort((tokens.last, from_begin[tokens.last]))
        self._tokens = tokens.take(order)
        self._begins = begins
        self._fields = np.flatnonzero(np.diff(self._tokens.last, prepend=-1))
        distances = from_begin[self._tokens.last[self._fields]]
        self._rounds = np.flatnonzero(np.diff(distances, prepend=-1))

    def filter(self, scores: np.ndarray) -> np.ndarray:
        """Probability of each token among those that end where it does.

        Args:
            scores: logarithms of the tokens' weights.
        """
        totals = np.full(len(self._begins), _IMPOSSIBLE)  # Of all splits up to a place.
        probabilities = np.empty(len(self._tokens.ids))
        bounds = np.append(self._fields, len(probabilities))
        for start, stop in itertools.pairwise([*self._rounds, len(self._fields)]):
            span = slice(bounds[start], bounds[stop])
            first, last, ids = self._tokens.take(span)
            weights = scores[ids] + np.where(self._begins[first], 0, totals[first - 1])
            fields = bounds[start:stop] - bounds[start]
            sizes = np.diff(bounds[start : stop + 1])
            highest = np.maximum.reduceat(weights, fields)
            shares = np.exp(weights - np.repeat(highest, sizes))
            sums = np.add.reduceat(shares, fields)
            totals[last[fields]] = highest + np.log(sums)
            probabilities[span] = shares / np.repeat(sums, sizes)
        return probabilities

    def sample(self, probabilities: np.ndarray, random: np.ndarray) -> np.ndarray:
        """Draws a split of each word.

        Args:
            probabilities: what `filter` gave.
            random: numbers from 0 to 1 that decide: `(places,)`.

        Returns:
            At each place the token that begins there, or -1: int32 `(places,)`.
        """
        first, last, ids = self._tokens
        field_of = np.empty(len(self._begins), np.int64)
        field_of[last[self._fields]] = np.arange(len(self._fields))
        ends = np.append(self._fields[1:], len(ids)) - 1
        sums = np.cumsum(probabilities)  # Each field adds 1.
        drawn = np.full(len(self._begins), _NONE, np.int32)
        place = np.flatnonzero(np.append(self._begins, True)[1:])
        while len(place):
            field = field_of[place]
            token = np.searchsorted(sums, field + random[place], side="right")
            token = np.clip(token, self._fields[field], ends[field])
            drawn[first[token]] = ids[token]
            place = first[token][~self._begins[first[token]]] - 1
        return drawn
