"""Buckets of pairs with similar lengths; each bucket has one batch shape."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from keras_transformer.dataset.pair_sources import PairSource

FILLER = -1  # Index in place of a pair, for a row of padding.
_BEYOND = 2**40  # Length of both sides of a bucket that no pair may move to.
_CANDIDATES = 64  # Quantiles of the lengths of a side, and of its distinct lengths.
MOST_SHAPES = 12
# Batches of padding that a further shape must save in each epoch. On JAX, compiling the
# step for a shape takes as long as dozens of batches, and ten epochs are a short run.
SAVED_BATCHES = 4


class BatchShape(NamedTuple):
    """Shape of the batches of one bucket.

    Attributes:
        rows: number of pairs in a batch.
        source_length: length of the source rows, padding included.
        target_length: length of the target rows, padding included.
        batches: number of batches of this shape in an epoch.
    """

    rows: int
    source_length: int
    target_length: int
    batches: int


class Batch(NamedTuple):
    """The pairs of a batch."""

    bucket: int
    pairs: np.ndarray  # Indices, int `(rows,)`; `FILLER` for a row of padding.


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Buckets of pairs, the narrowest first. The last bucket holds every pair."""

    lengths: np.ndarray  # Maxima of source and target, int `(buckets, 2)`.
    rows: list[int]  # Pairs in a batch of each bucket.

    @classmethod
    def choose(
        cls,
        lengths: np.ndarray,
        tokens_per_batch: int,
        max_shapes: int | None,
        longest: np.ndarray | None = None,
        multiple: int = 1,
        epoch_batches: int | None = None,
    ) -> Self:
        """Chooses buckets that need little padding for the lengths, int `(pairs, 2)`.

        Batches have no more rows than needed for nearly all of these pairs to stay in
        their bucket. `longest`, int `(2,)`, are the maximum lengths of later pairs, if
        any. With `max_shapes=None`, a bucket needs to save the padding of some batches
        of an epoch, which has `epoch_batches` batches like these pairs. `None` = the
        epoch consists of these pairs.
        """
        later = [] if longest is None else [longest[None]]
        least = SAVED_BATCHES * 2 * tokens_per_batch
        if epoch_batches is not None:
            least = math.ceil(SAVED_BATCHES * int(lengths.sum()) / epoch_batches)
        limits = choose_lengths(
            np.concatenate([lengths, *later]),
            max_shapes or MOST_SHAPES,
            1 if max_shapes else least,
        )
        fitting = tokens_per_batch // limits.max(axis=1) // multiple
        max_rows = (np.maximum(1, fitting) * multiple).tolist()

        def balanced_rows(bucket: int, pairs: int) -> int:
            """Returns the rows that divide the pairs into batches of equal size."""
            batches = math.ceil(pairs / max_rows[bucket])
            if bucket < len(max_rows) - 1:
                full = pairs >= max_rows[bucket]
                rows = pairs // batches if full else max_rows[bucket]
                return max(1, rows // multiple) * multiple
            rows = (
                max_rows[bucket] if later or not pairs else math.ceil(pairs / batches)
            )
            return math.ceil(rows / multiple) * multiple

        filled = _fill(lengths, limits, balanced_rows)
        used = [bucket for bucket, pairs in enumerate(filled[:-1]) if len(pairs)]
        used.append(len(filled) - 1)
        return cls(limits[used], [filled[bucket].shape[1] for bucket in used])

    def fill(self, lengths: np.ndarray) -> list[np.ndarray]:
        """Divides pairs of lengths, int `(pairs, 2)`, into batches.

        The longest pairs of a bucket that do not fill a batch move to the narrowest
        later bucket that holds them. If this needs more padding than rows of padding in
        their batch, or if there is no later bucket, rows of padding fill the batch.
        Returns the indices of the pairs of each bucket, int `(batches, rows)`.
        """
        return _fill(lengths, self.lengths, lambda bucket, pairs: self.rows[bucket])

    def batches(
        self, lengths: np.ndarray, random: np.random.Generator | None
    ) -> list[Batch]:
        """Divides pairs into batches, shuffled unless `random` is `None`."""
        filled = self.fill(lengths)
        if random is not None:
            filled = [random.permuted(n.ravel()).reshape(n.shape) for n in filled]
        batches = [
            Batch(bucket, pairs) for bucket, rows in enumerate(filled) for pairs in rows
        ]
        if random is not None:
            random.shuffle(batches)
        return batches


def _fill(
    lengths: np.ndarray, limits: np.ndarray, rows_of: Callable[[int, int], int]
) -> list[np.ndarray]:
    """Implements `Buckets.fill`; `rows_of` maps a bucket and its pairs to rows."""
    # No pair moves beyond the last bucket, since that needs more padding than a batch.
    limits = np.append(limits, np.full((1, 2), _BEYOND), axis=0)
    widths = limits.sum(axis=1)
    buckets = _narrowest(lengths, limits)
    batches = []
    for bucket, width in enumerate(widths[:-1]):
        pairs = np.flatnonzero(buckets == bucket)
        pairs = pairs[np.argsort(lengths[pairs].sum(axis=1), kind="stable")]
        rows = rows_of(bucket, len(pairs))
        full, surplus = np.split(pairs, [len(pairs) // rows * rows])
        later = bucket + 1 + _narrowest(lengths[surplus], limits[bucket + 1 :])
        missing = -len(surplus) % rows
        if (widths[later] - width).sum() > missing * width:
            full = np.pad(pairs, (0, missing), constant_values=FILLER)
        else:
            buckets[surplus] = later
        batches.append(full.reshape(-1, rows))
    return batches


def _narrowest(lengths: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Returns, for each pair, the index of the first bucket that holds it."""
    return (lengths[:, None] <= limits).all(axis=-1).argmax(axis=1)


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The batch shapes of all windows, and statistics of the first window."""

    buckets: Buckets
    lengths: np.ndarray  # Of the pairs of the window, int `(pairs, 2)`.
    counts: list[int]  # Batches of the window in each bucket.
    varies: bool  # Whether other windows have other pairs.

    @classmethod
    def of(
        cls,
        source: PairSource,
        tokens_per_batch: int,
        max_shapes: int | None,
        multiple: int,
        epoch_batches: int | None,
    ) -> Self:
        """Chooses buckets for the pairs of a source; see `Buckets.choose`."""
        lengths = source.window(0, source.max_lengths).lengths
        longest = None
        if source.varies:
            longest = np.maximum(source.longest, lengths.max(axis=0))
        buckets = Buckets.choose(
            lengths, tokens_per_batch, max_shapes, longest, multiple, epoch_batches
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

    @property
    def output_length_ratio(self) -> float:
        """See `ParallelDataset`."""
        source, target = self.lengths.T
        ratios = target / np.maximum(source, 1)
        longest = np.quantile(ratios, 0.999, method="higher")
        return max(1.0, round(1.5 * float(longest), 2))

    def tokens(self, batches: int) -> int:
        """Returns the expected number of target tokens in `batches` batches."""
        return round(int(self.lengths[:, 1].sum()) * batches / self.batches)

    def shapes(self, batches: int) -> tuple[BatchShape, ...]:
        """Returns the shapes, with the expected number of each in `batches` batches."""
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


# The choice of the lengths of the buckets.


def choose_lengths(lengths: np.ndarray, max_shapes: int, least: int = 1) -> np.ndarray:
    """Chooses the lengths of buckets, int `(buckets, 2)`, that need little padding.

    A pair belongs to the narrowest bucket that holds it. The width of a bucket is the
    sum of its source and target length. One bucket, the last, holds every pair. The
    others are found by greedy search: the bucket that saves most padding is added, if
    it saves `least` ids, then each bucket is replaced by the best bucket given the
    others until no bucket changes.
    The result is the better of two such searches: one replaces buckets after all are
    added, the other after each addition. On Multi30k it needs as little padding as the
    best of 60 random initialisations.
    """
    grid = _LengthGrid(lengths)
    added_first = grid.improve(grid.add(grid.whole, max_shapes, least))
    in_turn = grid.whole
    for number in range(2, max_shapes + 1):
        in_turn = grid.improve(grid.add(in_turn, number, least))
    best = min(added_first, in_turn, key=grid.ids)
    sources, targets = grid.limits
    rows, columns = zip(*best, strict=True)
    chosen = np.stack([sources[list(rows)], targets[list(columns)]], axis=1)
    return chosen[np.argsort(chosen.sum(axis=1), kind="stable")]


_Cell: TypeAlias = tuple[int, int]


class _LengthGrid:
    """A histogram of lengths, int `(pairs, 2)`, with a row per source length."""

    # A bucket is a cell (i, j). It holds the pairs of the cells up to row i, column j.

    def __init__(self, lengths: np.ndarray) -> None:
        self.limits = [_candidates(side) for side in lengths.T]
        self.widths = self.limits[0][:, None] + self.limits[1]
        self.whole: list[_Cell] = [(self.widths.shape[0] - 1, self.widths.shape[1] - 1)]
        cells = [
            np.searchsorted(limits, side)
            for limits, side in zip(self.limits, lengths.T, strict=True)
        ]
        self.pairs = np.zeros(self.widths.shape, np.int64)
        np.add.at(self.pairs, tuple(cells), 1)

    def ids(self, buckets: list[_Cell]) -> int:
        """Returns the number of ids of all pairs, padding included."""
        return int((self.pairs * self._padded_widths(buckets)).sum())

    def add(self, buckets: list[_Cell], number: int, least: int) -> list[_Cell]:
        """Adds the best bucket while it saves `least` ids, up to `number` buckets."""
        extended = [*buckets, self._best_addition(buckets)]
        saved = self.ids(buckets) - self.ids(extended)
        if len(extended) > number or saved < max(1, least):
            return buckets
        return self.add(extended, number, least)

    def improve(self, buckets: list[_Cell]) -> list[_Cell]:
        """Replaces each bucket but the first by the best one until none changes."""
        before = None
        while before != (before := self.ids(buckets)):
            for index in range(1, len(buckets)):
                rest = buckets[:index] + buckets[index + 1 :]
                buckets = [*rest[:index], self._best_addition(rest), *rest[index:]]
        return buckets

    def _padded_widths(self, buckets: list[_Cell]) -> np.ndarray:
        """Returns, for each cell, the width of the narrowest bucket that holds it."""
        widths = np.full(self.widths.shape, self.widths[-1, -1])
        for i, j in buckets:
            held = widths[: i + 1, : j + 1]
            np.minimum(held, self.widths[i, j], out=held)
        return widths

    def _best_addition(self, buckets: list[_Cell]) -> _Cell:
        """Returns the bucket that saves most padding when it is added."""
        padded = self._padded_widths(buckets)
        saved = np.zeros(self.widths.shape, np.int64)
        for width in np.unique(padded):
            pairs = np.where(padded == width, self.pairs, 0)
            held = pairs.cumsum(axis=0).cumsum(axis=1)
            saved += held * np.maximum(width - self.widths, 0)
        row, column = divmod(int(saved.argmax()), saved.shape[1])
        return row, column


def _candidates(side: np.ndarray) -> np.ndarray:
    """Returns the lengths to choose from: quantiles up to the longest length."""
    quantiles = np.linspace(0, 1, _CANDIDATES + 1)
    return np.unique(
        [
            np.quantile(values, quantiles, method="higher")
            for values in (side, np.unique(side))
        ]
    )
