"""Sorts pairs by length into buckets of one batch shape each."""

import math
from typing import NamedTuple

import numpy as np

_CANDIDATES = 256  # Bucket limits to choose from: quantiles of the lengths.


class BatchShape(NamedTuple):
    """Shape of the batches of one bucket.

    Attributes:
        rows: Pairs in a batch.
        source_length: Tokens in a source row, padding included.
        target_length: Tokens in a target row, padding included.
        batches: Batches of this shape in an epoch.
    """

    rows: int
    source_length: int
    target_length: int
    batches: int


def fill_buckets(
    kept: np.ndarray, lengths: np.ndarray, tokens_per_batch: int, max_shapes: int
) -> list[tuple[BatchShape, np.ndarray]]:
    """Batch shapes and the pair numbers of each bucket, filled up to whole batches.

    The longest pairs of a bucket that make no whole batch move to the next one. The
    last bucket is filled up with the number `len(lengths)`, an empty pair.
    """
    longest = lengths[kept].max(axis=1)
    order = kept[np.argsort(longest, kind="stable")]
    chosen = _choose_lengths(lengths[kept], max_shapes)
    ends = np.searchsorted(np.sort(longest), chosen.max(axis=1), side="right")
    buckets, start = [], 0
    for (source_length, target_length), end in zip(
        chosen.tolist(), ends.tolist(), strict=True
    ):
        rows = max(1, tokens_per_batch // max(source_length, target_length))
        batches = (end - start) // rows
        if end == len(order):
            batches = math.ceil((end - start) / rows)
            rows = math.ceil((end - start) / batches)
        numbers = order[start : start + batches * rows]
        filler = [len(lengths)] * (batches * rows - len(numbers))
        if batches:
            shape = BatchShape(rows, source_length, target_length, batches)
            buckets.append((shape, np.append(numbers, filler).astype(np.int64)))
        start += batches * rows
    return buckets


def _choose_lengths(lengths: np.ndarray, max_shapes: int) -> np.ndarray:
    """The rising (source, target) lengths (shapes, 2) that need the least padding.

    A pair belongs to the first bucket as long as its longer side. Dynamic programming
    over the bucket limits: `size[j]` is the least number of ids in the batches of
    pairs up to limit j, in as many buckets as there were steps.
    """
    longest = lengths.max(axis=1)
    quantiles = np.linspace(0, 1, _CANDIDATES + 1)
    limits = np.unique(np.quantile(longest, quantiles, method="higher"))
    bins = np.searchsorted(limits, longest)
    widest = np.zeros((len(limits), 2), np.int64)
    np.maximum.at(widest, bins, lengths)
    widest = np.maximum.accumulate(widest)
    pairs = np.cumsum(np.bincount(bins))
    between = pairs - np.concatenate([[0], pairs[:-1]])[:, None]
    cost = np.where(between > 0, between * widest.sum(axis=1), np.inf)
    size, steps = cost[0], []
    for _ in range(min(max_shapes, len(limits)) - 1):
        sizes = size[:-1, None] + cost[1:]
        size = sizes.min(axis=0)
        steps.append(sizes.argmin(axis=0))
    chosen = [len(limits) - 1]
    for step in reversed(steps):
        chosen.append(step[chosen[-1]])
    return widest[chosen[::-1]]
