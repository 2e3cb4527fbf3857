"""Mixtures of corpora: the share of each corpus in a window of pairs."""

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class CorpusRange(NamedTuple):
    """Consecutive pairs of one corpus.

    Attributes:
        corpus: index of the corpus.
        repetition: number of complete passes over the corpus before this range.
        start: index of the first pair.
        stop: index after the last pair.
    """

    corpus: int
    repetition: int
    start: int
    stop: int


class MixedLines(NamedTuple):
    """The pairs of several ranges.

    Attributes:
        lines: index of the corpus and of the line of each pair, integer `(pairs, 2)`.
        repetitions: repetition of the corpus of each pair, integer `(pairs,)`.
    """

    lines: np.ndarray
    repetitions: np.ndarray

    @classmethod
    def of(cls, ranges: Sequence[CorpusRange]) -> "MixedLines":
        """Returns the pairs of the ranges, in order."""
        counts = [each.stop - each.start for each in ranges]
        corpora = np.repeat([each.corpus for each in ranges], counts)
        lines = np.concatenate([np.arange(each.start, each.stop) for each in ranges])
        repetitions = np.repeat([each.repetition for each in ranges], counts)
        return cls(np.stack([corpora, lines], axis=1), repetitions)


class Mixture:
    """Divides endlessly repeated corpora into windows.

    A window contains the next pairs of each corpus.

    Args:
        sizes: number of pairs in each corpus.
        weights: relative share of each corpus in a window. `None`: the size of the
            corpus, so that all corpora end in the same window.
        window: pairs in a window, up to rounding of one pair per corpus.

    Raises:
        ValueError: if a corpus with a weight has no pairs.
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
    """Checks the `weights` of `parallel_dataset`.

    Args:
        weights: iterable of numbers above 0, or `None`.
        files: number of source files.

    Returns:
        The weights as floats, or `None`.

    Raises:
        ValueError: if `weights` is not one number above 0 for each file.
    """
    if weights is None:
        return None
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != files or not all(0 < number < math.inf for number in numbers):
        raise ValueError(
            "`weights` must be one number above 0 for each source file; received "
            f"`weights={weights!r}` for {files}. Remove the files that get no share."
        )
    return numbers
