"""Translation probabilities of tokens, learned from parallel text (IBM model 1)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Pairs of a source token and a target token of the sentences that are processed
# together.
CHUNK = 1 << 20


class TranslationTable(NamedTuple):
    """Probabilities of target tokens, given a source token; the others are 0.

    Attributes:
        sources: int64 array `(entries,)`, the source tokens, ascending.
        targets: int64 array `(entries,)`, the target tokens.
        probabilities: float64 array `(entries,)`.
    """

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray

    def best(self, rows: int, count: int, least: float = 0.0) -> np.ndarray:
        """Returns the most probable target tokens of each source token.

        Args:
            rows: int, number of source tokens.
            count: int, greatest number of target tokens of each.
            least: float, least probability of a target token.

        Returns:
            int32 array `(rows, count)`, the most probable first, then -1.
        """
        kept = (self.sources < rows) & (self.probabilities >= least)
        sources, targets, probabilities = (column[kept] for column in self)
        order = np.lexsort((targets, -probabilities, sources))
        sources, targets = sources[order], targets[order]
        ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
        first = ranks < count
        found = np.full((rows, count), -1, "int32")
        found[sources[first], ranks[first]] = targets[first]
        return found


def learn_translation_table(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    iterations: int = 5,
) -> TranslationTable:
    """Learns the translation probabilities of IBM model 1 by expectation maximisation.

    Each target token is the translation of one source token of its sentence, or of the
    empty token, which precedes every source. All choices are equally probable at first.

    Memory grows with the number of different pairs of tokens that occur in a pair of
    sentences, not with their occurrences.

    Args:
        sources: lists of token ids.
        targets: lists of token ids, the translations.
        iterations: int, number of iterations.

    Returns:
        A `TranslationTable`. The last source token, whose id is the number of source
        tokens, is the empty token.

    References:
        - [Brown et al., 1993](https://aclanthology.org/J93-2003), section 4.1
    """
    empty = 1 + max((max(row) for row in sources if len(row)), default=-1)
    size = 1 + max((max(row) for row in targets if len(row)), default=0)
    sides = (_Rows([[empty, *row] for row in sources]), _Rows(targets))
    keys = np.zeros(0, "int64")
    for pairs, _ in _pairs(*sides, size):
        keys = np.union1d(keys, pairs)
    key_sources = keys // size
    probabilities = np.ones(len(keys))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for pairs, positions in _pairs(*sides, size):
            places = np.searchsorted(keys, pairs)
            expected = probabilities[places]
            expected /= np.bincount(positions, expected)[positions]
            counts += np.bincount(places, expected, len(keys))
        totals = np.bincount(key_sources, counts)
        probabilities = counts / totals[key_sources]
    return TranslationTable(key_sources, keys % size, probabilities)


class _Rows:
    """Lists of token ids, one after the other in an array."""

    def __init__(self, rows: Sequence[Sequence[int]]):
        self.lengths = np.array([*map(len, rows)], "int64")
        self.starts = np.cumsum(self.lengths) - self.lengths
        flat = (token for row in rows for token in row)
        self.tokens = np.fromiter(flat, "int64", self.lengths.sum())


def _pairs(
    sources: _Rows, targets: _Rows, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields all pairs of tokens of some sentences.

    Each is `source * size + target`, an int64, with the position of its target token
    among those of the sentences.
    """
    ends = np.cumsum(sources.lengths * targets.lengths)
    first = 0
    while first < len(ends):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + CHUNK)))
        rows = np.repeat(np.arange(first, last), targets.lengths[first:last])
        begin = targets.starts[first]
        own = targets.tokens[begin : begin + len(rows)]
        lengths = sources.lengths[rows]
        positions = np.repeat(np.arange(len(rows)), lengths)
        within = np.arange(len(positions)) - np.repeat(
            np.cumsum(lengths) - lengths, lengths
        )
        places = sources.starts[rows][positions] + within
        yield sources.tokens[places] * size + own[positions], positions
        first = last
