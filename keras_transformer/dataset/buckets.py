"""Sorts pairs by length into buckets of one batch shape each."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from keras_transformer.dataset.lengths import choose_lengths

FILLER = -1  # The number of an empty pair that fills up a batch.
_BEYOND = 2**40  # Tokens of a side in the bucket after the last, which is none.


class BatchShape(NamedTuple):
    """Shape of the batches of one bucket.

    Attributes:
        rows: pairs in a batch.
        source_length: tokens in a source row, padding included.
        target_length: tokens in a target row, padding included.
        batches: batches of this shape in an epoch.
    """

    rows: int
    source_length: int
    target_length: int
    batches: int


class Batch(NamedTuple):
    """The pairs of a batch.

    Attributes:
        bucket: number of its bucket, which gives its shape.
        numbers: numbers of its pairs, `FILLER` where there is none: integer `(rows,)`.
    """

    bucket: int
    numbers: np.ndarray


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Buckets of pairs, the narrowest first; the last one can hold any pair.

    Attributes:
        lengths: longest source and target of each bucket: integer `(buckets, 2)`.
        rows: pairs in a batch of each bucket.
    """

    lengths: np.ndarray
    rows: list[int]

    @classmethod
    def choose(
        cls,
        lengths: np.ndarray,
        tokens_per_batch: int,
        max_shapes: int,
        longest: np.ndarray | None = None,
        multiple: int = 1,
    ) -> Self:
        """Chooses buckets that hold pairs like these with little padding.

        Rows are as few as needed for nearly all of these pairs to stay in their bucket.

        Args:
            lengths: tokens per side: integer `(pairs, 2)`.
            tokens_per_batch: most ids of a batch on either side.
            max_shapes: most buckets.
            longest: longest source and target of pairs that may come later; `None` =
                there are none.
            multiple: number of which the rows of each bucket are a multiple.
        """
        more = [] if longest is None else [longest[None]]
        limits = choose_lengths(np.concatenate([lengths, *more]), max_shapes)
        fitting = tokens_per_batch // limits.max(axis=1) // multiple
        most = (np.maximum(1, fitting) * multiple).tolist()

        def even(place: int, count: int) -> int:
            batches = math.ceil(count / most[place])
            if place < len(most) - 1:
                rows = count // batches if count >= most[place] else most[place]
                return max(1, rows // multiple) * multiple
            rows = most[place] if more or not count else math.ceil(count / batches)
            return math.ceil(rows / multiple) * multiple

        batches = _fill(lengths, limits, even)
        used = [place for place, numbers in enumerate(batches[:-1]) if len(numbers)]
        used.append(len(batches) - 1)
        return cls(limits[used], [batches[place].shape[1] for place in used])

    def fill(self, lengths: np.ndarray) -> list[np.ndarray]:
        """Returns the numbers of the pairs in each bucket's batches, `(batches, rows)`.

        The longest pairs of a bucket that do not fill a batch move to the narrowest
        later bucket that holds them. If that makes more padding than to fill the batch
        up with `FILLER`, or if there is none, it is filled up.
        """
        return _fill(lengths, self.lengths, lambda place, count: self.rows[place])

    def batches(
        self, lengths: np.ndarray, random: np.random.Generator | None
    ) -> list[Batch]:
        """Returns the batches of these pairs, shuffled within and across buckets."""
        filled = self.fill(lengths)
        if random is not None:
            filled = [random.permuted(n.ravel()).reshape(n.shape) for n in filled]
        batches = [
            Batch(bucket, row) for bucket, rows in enumerate(filled) for row in rows
        ]
        if random is not None:
            random.shuffle(batches)
        return batches


def _fill(
    lengths: np.ndarray, limits: np.ndarray, choose_rows: Callable[[int, int], int]
) -> list[np.ndarray]:
    """Implements `Buckets.fill`; `choose_rows(bucket, pairs in it)` sets the rows."""
    # Nothing moves beyond the last bucket: it would cost more than any batch.
    limits = np.append(limits, np.full((1, 2), _BEYOND), axis=0)
    widths = limits.sum(axis=1)
    bucket = _narrowest(lengths, limits)
    batches = []
    for place, width in enumerate(widths[:-1]):
        numbers = np.flatnonzero(bucket == place)
        numbers = numbers[np.argsort(lengths[numbers].sum(axis=1), kind="stable")]
        rows = choose_rows(place, len(numbers))
        whole, surplus = np.split(numbers, [len(numbers) // rows * rows])
        later = place + 1 + _narrowest(lengths[surplus], limits[place + 1 :])
        missing = -len(surplus) % rows
        if (widths[later] - width).sum() > missing * width:
            whole = np.pad(numbers, (0, missing), constant_values=FILLER)
        else:
            bucket[surplus] = later
        batches.append(whole.reshape(-1, rows))
    return batches


def _narrowest(lengths: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Returns, for each pair, the first bucket that holds it."""
    return (lengths[:, None] <= limits).all(axis=-1).argmax(axis=1)
