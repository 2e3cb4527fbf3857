"""What happens to every pair between its text and a batch."""

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
    """Tokenizes, filters and splits at random.

    Attributes:
        tokenizers: Of source and target.
        pair_filter: Which pairs are kept.
        drop_duplicates: Whether to leave out pairs that were there before.
        sampling: How texts are split at random.
    """

    tokenizers: Tokenizers
    pair_filter: PairFilter
    drop_duplicates: bool
    sampling: SubwordSampling

    def duplicates(
        self, corpora: Sequence[Iterable[Pair]], sizes: Sequence[int]
    ) -> list[Flags]:
        """For each corpus, of this size, the pairs that were there before."""
        if self.drop_duplicates:
            return find_duplicates(corpora)
        return [Flags.unset(size) for size in sizes]

    def prepare(
        self, texts: list[Pair], lines: np.ndarray, duplicates: np.ndarray
    ) -> tuple[TokenPairs, np.ndarray, dict[str, np.ndarray]]:
        """The pairs that are kept, their places among all, and what was amiss."""
        pairs = TokenPairs(*tokenize_pairs(texts, self.tokenizers), lines)
        faults = self.pair_filter.faults(pairs.lengths, duplicates)
        kept = np.flatnonzero(~np.any(list(faults.values()), axis=0))
        return pairs.take(kept), kept, faults
