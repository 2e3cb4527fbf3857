"""Prepares pairs for batches: tokenizes, filters and samples them."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from keras_transformer.dataset.duplicates import Flags, find_duplicates
from keras_transformer.dataset.filters import PairFilter
from keras_transformer.dataset.pairs import Pair
from keras_transformer.dataset.subword_sampling import SubwordSampling
from keras_transformer.dataset.token_rows import TokenPairs
from keras_transformer.dataset.tokenizing import Tokenizers, tokenize_pairs


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Tokenizes and filters pairs, and samples their subwords.

    Attributes:
        tokenizers: the tokenizers of source and target.
        pair_filter: decides which pairs are kept.
        drop_duplicates: whether to drop pairs that have occurred before.
        sampling: splits texts at random.
    """

    tokenizers: Tokenizers
    pair_filter: PairFilter
    drop_duplicates: bool
    sampling: SubwordSampling

    def duplicates(
        self, corpora: Sequence[Iterable[Pair]], sizes: Sequence[int]
    ) -> list[Flags]:
        """Flags, for each corpus, the pairs that have occurred before."""
        if self.drop_duplicates:
            return find_duplicates(corpora)
        return [Flags.unset(size) for size in sizes]

    def prepare(
        self, texts: list[Pair], lines: np.ndarray, duplicates: np.ndarray
    ) -> tuple[TokenPairs, np.ndarray, dict[str, np.ndarray]]:
        """Returns the pairs that are kept, their places among all, and the faults."""
        pairs = TokenPairs(*tokenize_pairs(texts, self.tokenizers), lines)
        faults = self.pair_filter.faults(pairs.lengths, duplicates)
        kept = np.flatnonzero(~np.any(list(faults.values()), axis=0))
        return pairs.take(kept), kept, faults
