"""Sources of tokenized pairs: all pairs in memory, or a stream of windows."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self, TypeAlias

import numpy as np

from keras_transformer.dataset.filters import (
    DroppedPairs,
    FilterStatistics,
    MaxLengths,
    PackedFlags,
    PairFilter,
    find_duplicates,
)
from keras_transformer.dataset.mixture import CorpusRange, MixedLines, Mixture
from keras_transformer.dataset.subword_sampling import SubwordSampling
from keras_transformer.dataset.text_pairs import Corpus, Pair, checksum_of
from keras_transformer.dataset.token_rows import Tokenizers, TokenPairs


@dataclasses.dataclass(frozen=True)
class PairPreparation:
    """Tokenization, filters and subword sampling of pairs."""

    tokenizers: Tokenizers
    pair_filter: PairFilter
    drop_duplicates: bool
    sampling: SubwordSampling

    def find_duplicates(
        self, corpora: Sequence[Iterable[Pair]], sizes: Sequence[int]
    ) -> list[PackedFlags]:
        """Flags the pairs of each corpus to drop because they have occurred before."""
        if self.drop_duplicates:
            return find_duplicates(corpora)
        return [PackedFlags.unset(size) for size in sizes]

    def prepare(
        self, texts: Sequence[Pair], lines: np.ndarray, duplicate: np.ndarray
    ) -> tuple[TokenPairs, DroppedPairs]:
        """Tokenizes pairs, and returns those that are kept and which are dropped.

        `lines`, int `(pairs, 2)`, are the corpus and line of each pair; `duplicate`,
        boolean `(pairs,)`, is whether it has occurred before.
        """
        pairs = self.tokenizers.tokenize(texts, lines)
        self.tokenizers.check_language_tokens(texts, pairs)
        dropped = self.pair_filter.find_dropped(
            pairs.lengths,
            self.tokenizers.text_lengths(pairs),
            duplicate,
            self.tokenizers.find_blank(pairs),
        )
        return pairs.take(dropped.kept), dropped


class MemoryPairs:
    """Source of pairs that are stored in memory. Each window is one epoch."""

    def __init__(
        self,
        corpora: Sequence[Corpus],
        weights: Sequence[float] | None,
        preparation: PairPreparation,
    ) -> None:
        texts = [list(corpus) for corpus in corpora]
        sizes = list(map(len, texts))
        duplicate = [
            flags.between(0, size)
            for flags, size in zip(
                preparation.find_duplicates(texts, sizes), sizes, strict=True
            )
        ]
        ranges = [CorpusRange(i, 0, 0, size) for i, size in enumerate(sizes)]
        self._pairs, dropped = preparation.prepare(
            [pair for corpus in texts for pair in corpus],
            MixedLines.of(ranges).lines,
            np.concatenate(duplicate),
        )
        self.statistics = FilterStatistics()
        self.statistics.add(dropped)
        self.max_lengths = preparation.pair_filter.max_lengths
        self.varies = bool(preparation.sampling) or weights is not None
        self.checksum = checksum_of(
            *(self._pairs.source.token_ids, self._pairs.source.lengths),
            *(self._pairs.target.token_ids, self._pairs.target.lengths),
        )
        self._sampling = preparation.sampling
        kept_sizes = np.bincount(self._pairs.lines[:, 0], minlength=len(corpora))
        self._starts = np.cumsum(kept_sizes) - kept_sizes
        self._mixture = Mixture(kept_sizes.tolist(), weights, sum(kept_sizes))

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # Nothing changes it.

    @property
    def longest(self) -> MaxLengths:
        """Lengths of the longest source and target, without subword sampling."""
        return MaxLengths(*self._pairs.lengths.max(axis=0).tolist())

    def window(self, number: int, max_lengths: MaxLengths) -> TokenPairs:
        """Returns the pairs of epoch `number`, whatever was called before.

        A text whose sampled split is longer than `max_lengths` is not sampled.
        """
        if not self.varies:
            return self._pairs
        lines, repetitions = MixedLines.of(self._mixture.window(number))
        indices = self._starts[lines[:, 0]] + lines[:, 1]
        return self._sampling.sample(
            self._pairs.take(indices), repetitions, max_lengths
        )


class StreamedPairs:
    """Source of pairs that are read window by window from endlessly repeated corpora.

    The constructor reads the corpora once, to count and check their lines.
    """

    varies = True

    def __init__(
        self,
        corpora: Sequence[Corpus],
        weights: Sequence[float] | None,
        preparation: PairPreparation,
        window: int,
    ) -> None:
        self.statistics = FilterStatistics()
        self.max_lengths = preparation.pair_filter.max_lengths
        self._counted_windows: set[int] = set()
        self._preparation = preparation
        sizes = [corpus.count() for corpus in corpora]
        self._duplicates = preparation.find_duplicates(corpora, sizes)
        self._mixture = Mixture(sizes, weights, window)
        self.checksum = checksum_of(*(corpus.checksum() for corpus in corpora))
        self._corpora = corpora
        self._readers = [corpus.reader() for corpus in corpora]

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_readers": None}  # Open files cannot be copied.

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._readers = [corpus.reader() for corpus in self._corpora]

    @property
    def longest(self) -> MaxLengths:
        """The maximum lengths of the filter, as later pairs are not known yet."""
        return self.max_lengths

    def window(self, number: int, max_lengths: MaxLengths) -> TokenPairs:
        """Returns the pairs of window `number`, whatever was called before.

        A text whose sampled split is longer than `max_lengths` is not sampled.
        """
        ranges = self._mixture.window(number)
        texts: list[Pair] = []
        duplicate = []
        for corpus, _, start, stop in ranges:
            texts += self._readers[corpus](start, stop)
            duplicate.append(self._duplicates[corpus].between(start, stop))
        lines, repetitions = MixedLines.of(ranges)
        pairs, dropped = self._preparation.prepare(
            texts, lines, np.concatenate(duplicate)
        )
        if number not in self._counted_windows:
            self._counted_windows.add(number)
            self.statistics.add(dropped)
        sampling = self._preparation.sampling
        return sampling.sample(pairs, repetitions[dropped.kept], max_lengths)


PairSource: TypeAlias = MemoryPairs | StreamedPairs
