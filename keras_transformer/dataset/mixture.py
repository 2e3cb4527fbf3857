"""Mixtures of corpora: the share of each corpus in a window of pairs."""

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class CorpusRange(NamedTuple):
    """Consecutive pairs of one corpus."""

    corpus: int
    repetition: int  # Complete passes over the corpus before the range.
    start: int
    stop: int  # Exclusive.


class MixedLines(NamedTuple):
    """The pairs of several ranges."""

    lines: np.ndarray  # Corpus and line of each pair, int `(pairs, 2)`.
    repetitions: np.ndarray  # Of the corpus of each pair, int `(pairs,)`.

    @classmethod
    def of(cls, ranges: Sequence[CorpusRange]) -> "MixedLines":
        """Returns the pairs of the ranges, in order."""
        counts = [each.stop - each.start for each in ranges]
        corpora = np.repeat([each.corpus for each in ranges], counts)
        lines = np.concatenate([np.arange(each.start, each.stop) for each in ranges])
        repetitions = np.repeat([each.repetition for each in ranges], counts)
        return cls(np.stack([corpora, lines], axis=1), repetitions)


class Mixture:
    """Divides endlessly repeated corpora into windows of the next pairs of each.

    `sizes` are the numbers of pairs of the corpora. A window has `window` pairs, up to
    rounding of one pair per corpus. `weights` are the shares of the corpora in it;
    without them, all corpora end in the same window.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float] | None, window: int
    ) -> None:
        if weights is not None and not all(sizes):
            raise ValueError(
                "With `weights`, each file must have at least one pair that is not "
                "dropped; all pairs were dropped of file number "
                f"{sizes.index(0) + 1}, counted from 1. Remove the file, or check its "
                "text."
            )
        exact = [Fraction(weight) for weight in (sizes if weights is None else weights)]
        self._sizes = sizes
        self._steps = [window * weight / sum(exact) for weight in exact]

    def window(self, number: int) -> list[CorpusRange]:
        """Returns the ranges of window `number`, counted from 0."""
        return [
            each
            for corpus, step in enumerate(self._steps)
            for each in self._ranges(
                corpus, int(number * step), int((number + 1) * step)
            )
        ]

    def _ranges(self, corpus: int, start: int, stop: int) -> list[CorpusRange]:
        """Splits a range of the endlessly repeated corpus at its repetitions."""
        size = max(1, self._sizes[corpus])  # An empty corpus has the step 0.
        bounds = [start, *range((start // size + 1) * size, stop, size), stop]
        return [
            CorpusRange(
                corpus, first // size, first % size, first % size + last - first
            )
            for first, last in itertools.pairwise(bounds)
            if first < last
        ]


def parse_weights(weights: Iterable[float] | None, files: int) -> list[float] | None:
    """Returns the `weights` of a dataset as floats, one above 0 per file."""
    if weights is None:
        return None
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != files or not all(0 < number < math.inf for number in numbers):
        raise ValueError(
            "`weights` must be one number above 0 for each file; received "
            f"`weights={weights!r}` for {files}. Remove the files that get no share."
        )
    return numbers
