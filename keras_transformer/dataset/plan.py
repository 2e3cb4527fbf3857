"""Plans the batches of an epoch from the first window."""

import dataclasses
from typing import Self

import numpy as np

from keras_transformer.dataset.buckets import BatchShape, Buckets
from keras_transformer.dataset.pair_source import PairSource


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Batch shapes for all windows, and the batches that the first window fills.

    Attributes:
        buckets: the buckets.
        lengths: tokens per side of that window's pairs: integer `(pairs, 2)`.
        counts: batches that they fill in each bucket.
        varies: whether other windows fill others.
    """

    buckets: Buckets
    lengths: np.ndarray
    counts: list[int]
    varies: bool

    @classmethod
    def of(
        cls, source: PairSource, tokens_per_batch: int, max_shapes: int, multiple: int
    ) -> Self:
        """Makes the plan for these pairs; see `Buckets.choose`."""
        lengths = source.draw(0, source.limits).lengths
        longest = None
        if source.varies:
            longest = np.maximum(source.longest, lengths.max(axis=0))
        buckets = Buckets.choose(
            lengths, tokens_per_batch, max_shapes, longest, multiple
        )
        counts = list(map(len, buckets.fill(lengths)))
        return cls(buckets, lengths, counts, source.varies)

    @property
    def batches(self) -> int:
        """Number of batches of the first window."""
        return sum(self.counts)

    @property
    def padding_fraction(self) -> float:
        """Share of padding among all ids of these batches, from 0 to 1."""
        rows = np.multiply(self.counts, self.buckets.rows)
        return 1 - int(self.lengths.sum()) / int((rows @ self.buckets.lengths).sum())

    def tokens(self, batches: int) -> int:
        """Returns the target tokens in so many batches."""
        return round(int(self.lengths[:, 1].sum()) * batches / self.batches)

    def shapes(self, batches: int) -> tuple[BatchShape, ...]:
        """Returns the shapes, and how many of so many batches have each."""
        return tuple(
            BatchShape(rows, source, target, round(count * batches / self.batches))
            for rows, (source, target), count in zip(
                self.buckets.rows,
                self.buckets.lengths.tolist(),
                self.counts,
                strict=True,
            )
            if count or self.varies
        )
