"""Mixes the pairs of several corpora into windows."""

from collections.abc import Sequence
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

import numpy as np


class Draw(NamedTuple):
    """A range of pairs of one corpus.

    Attributes:
        corpus: number of the corpus.
        repetition: how many complete passes over the corpus came before.
        start: number of the first pair.
        stop: number of the pair after the last.
    """

    corpus: int
    repetition: int
    start: int
    stop: int


class Mixture:
    """Endlessly repeats each corpus; a window has the next pairs of each.

    Args:
        sizes: pairs in each corpus.
        weights: share of each corpus in a window, in any unit; `None` = its size, so
            that all corpora end at the same time.
        window: pairs in a window, give or take one for each corpus.
    """

    def __init__(self, sizes: list[int], weights: Sequence[float] | None, window: int):
        if weights is not None and not all(sizes):
            raise ValueError(
                "With `weights` pairs of each file must be left; they were all dropped "
                f"of file number {sizes.index(0)}, counted from 0. Leave it out, or "
                "check it."
            )
        exact = [Fraction(weight) for weight in (sizes if weights is None else weights)]
        self._sizes = sizes
        self._steps = [window * weight / sum(exact) for weight in exact]

    def window(self, number: int) -> list[Draw]:
        """Returns the draws that make up window `number`."""
        return [
            draw
            for corpus, step in enumerate(self._steps)
            for draw in self._draws(
                corpus, int(number * step), int((number + 1) * step)
            )
        ]

    def _draws(self, corpus: int, start: int, stop: int) -> list[Draw]:
        size = max(1, self._sizes[corpus])  # Nothing is drawn from an empty corpus.
        cuts = [start, *range((start // size + 1) * size, stop, size), stop]
        return [
            Draw(corpus, first // size, first % size, first % size + last - first)
            for first, last in zip(cuts, cuts[1:], strict=False)
            if first < last
        ]


def draw_lines(draws: list[Draw]) -> tuple[np.ndarray, np.ndarray]:
    """Returns each pair's corpus and line `(pairs, 2)`, and repetition `(pairs,)`."""
    counts = [draw.stop - draw.start for draw in draws]
    corpora = np.repeat([draw.corpus for draw in draws], counts)
    lines = np.concatenate([np.arange(draw.start, draw.stop) for draw in draws])
    repetitions = np.repeat([draw.repetition for draw in draws], counts)
    return np.stack([corpora, lines], axis=1), repetitions


def as_weights(weights: Any, files: int) -> list[float] | None:
    """Checks the weights that a user passes.

    Args:
        weights: iterable of numbers above 0, or `None`.
        files: how many there should be.

    Raises:
        ValueError: if they are anything else.
    """
    if weights is None:
        return None
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != files or not all(0 < number < inf for number in numbers):
        raise ValueError(
            "`weights` must be a number above 0 for each source file; received "
            f"`weights={weights!r}` for {files}. Leave out files that you do not want."
        )
    return numbers
