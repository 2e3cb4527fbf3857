"""Pairs tokenized once and kept in memory."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.dataset.filters import Account
from keras_transformer.dataset.mixture import Draw, Mixture, draw_lines
from keras_transformer.dataset.pair_source import Limits
from keras_transformer.dataset.pairs import Corpus
from keras_transformer.dataset.preparation import Preparation
from keras_transformer.dataset.token_rows import TokenPairs


class MemoryPairs:
    """A `PairSource` that keeps all pairs in memory; each window is an epoch.

    Args:
        corpora: the corpora.
        weights: share of each corpus in an epoch; `None` = by size.
        preparation: how pairs are tokenized, filtered and sampled.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        weights: Sequence[float] | None,
        preparation: Preparation,
    ):
        texts = [list(corpus) for corpus in corpora]
        sizes = list(map(len, texts))
        duplicates = [
            flags.between(0, size)
            for flags, size in zip(
                preparation.duplicates(texts, sizes), sizes, strict=True
            )
        ]
        lines, _ = draw_lines([Draw(i, 0, 0, size) for i, size in enumerate(sizes)])
        self._pairs, kept, faults = preparation.prepare(
            [pair for pairs in texts for pair in pairs],
            lines,
            np.concatenate(duplicates),
        )
        self.account = Account()
        self.account.add(faults)
        self.limits = preparation.pair_filter.max_lengths
        self.varies = bool(preparation.sampling) or weights is not None
        self._sampling = preparation.sampling
        left = np.bincount(self._pairs.lines[:, 0], minlength=len(corpora))
        self._firsts = np.cumsum(left) - left
        self._mixture = Mixture(left.tolist(), weights, len(kept))

    @property
    def longest(self) -> Limits:
        """Tokens of the longest source and target, as the tokenizers split them."""
        source, target = self._pairs.lengths.max(axis=0).tolist()
        return source, target

    def draw(self, number: int, limits: Limits) -> TokenPairs:
        """Returns the pairs of epoch `number`."""
        if not self.varies:
            return self._pairs
        places, repetitions = draw_lines(self._mixture.window(number))
        numbers = self._firsts[places[:, 0]] + places[:, 1]
        pairs = self._pairs.take(numbers)
        return self._sampling.sample(pairs, repetitions, limits)
