"""Pairs read and tokenized as they are needed."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.dataset.filters import Account
from keras_transformer.dataset.mixture import Mixture, draw_lines
from keras_transformer.dataset.pair_source import Limits
from keras_transformer.dataset.pairs import Corpus, Pair
from keras_transformer.dataset.preparation import Preparation
from keras_transformer.dataset.token_rows import TokenPairs


class StreamedPairs:
    """A `PairSource` that endlessly repeats corpora, window by window.

    Args:
        corpora: the corpora, which are read through once at the start.
        weights: share of each corpus in a window; `None` = by size.
        preparation: how pairs are tokenized, filtered and sampled.
        window: pairs in a window.
    """

    varies = True

    def __init__(
        self,
        corpora: Sequence[Corpus],
        weights: Sequence[float] | None,
        preparation: Preparation,
        window: int,
    ):
        self.account = Account()
        self.limits = preparation.pair_filter.max_lengths
        self._counted: set[int] = set()
        self._preparation = preparation
        sizes = [corpus.count() for corpus in corpora]
        self._duplicates = preparation.duplicates(corpora, sizes)
        self._mixture = Mixture(sizes, weights, window)
        self._readers = [corpus.reader() for corpus in corpora]

    @property
    def longest(self) -> Limits:
        """The limits, since later pairs are not known yet."""
        return self.limits

    def draw(self, number: int, limits: Limits) -> TokenPairs:
        """Returns the pairs of window `number`."""
        draws = self._mixture.window(number)
        texts: list[Pair] = []
        duplicates = []
        for corpus, _, start, stop in draws:
            texts += self._readers[corpus](start, stop)
            duplicates.append(self._duplicates[corpus].between(start, stop))
        lines, repetitions = draw_lines(draws)
        pairs, kept, faults = self._preparation.prepare(
            texts, lines, np.concatenate(duplicates)
        )
        if number not in self._counted:
            self._counted.add(number)
            self.account.add(faults)
        return self._preparation.sampling.sample(pairs, repetitions[kept], limits)
