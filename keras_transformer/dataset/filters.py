"""Filters of text pairs: length limits, duplicates, and statistics of dropped pairs."""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.text_pairs import Pair
from keras_transformer_runtime.arguments import check_ints, check_numbers


class MaxLengths(NamedTuple):
    """Maximum lengths in tokens, with the end token; infinity = no limit."""

    source: float
    target: float


class DroppedPairs(NamedTuple):
    """The reasons for which pairs are dropped, a boolean `(pairs,)` for each reason.

    At most one of the reasons applies to a pair.
    """

    empty: np.ndarray  # A side has no tokens, or a language token alone.
    max_source_length: np.ndarray
    max_target_length: np.ndarray
    max_length_ratio: np.ndarray  # The lengths of both sides differ too much.
    duplicate: np.ndarray  # The pair has occurred before.

    @property
    def kept(self) -> np.ndarray:
        """Indices of the pairs that are not dropped."""
        return np.flatnonzero(~np.any(self, axis=0))


@dataclasses.dataclass(frozen=True)
class PairFilter:
    """Decides which pairs are dropped; a limit of `None` is no limit."""

    max_source_length: int | None  # With the end token.
    max_target_length: int | None  # With the end token.
    max_length_ratio: float | None  # Longer to shorter side, without end tokens.

    def __post_init__(self) -> None:
        check_ints(
            1,
            optional=True,
            max_source_length=self.max_source_length,
            max_target_length=self.max_target_length,
        )
        check_numbers(1, optional=True, max_length_ratio=self.max_length_ratio)

    @property
    def max_lengths(self) -> MaxLengths:
        """Maximum lengths of source and target, infinity if there is no limit."""
        return MaxLengths(
            _or_infinity(self.max_source_length), _or_infinity(self.max_target_length)
        )

    def find_dropped(
        self,
        lengths: np.ndarray,
        text_lengths: np.ndarray,
        duplicate: np.ndarray,
        blank: np.ndarray,
    ) -> DroppedPairs:
        """Finds the pairs to drop, each with the first reason that applies.

        `lengths` and `text_lengths`, which exclude start and end tokens, are int
        `(pairs, 2)`; `duplicate` and `blank` are boolean `(pairs,)`.
        """
        max_source, max_target = self.max_lengths
        shorter, longer = text_lengths.min(axis=1), text_lengths.max(axis=1)
        max_longer = np.maximum(shorter, 1) * _or_infinity(self.max_length_ratio)
        reasons = DroppedPairs(
            empty=blank | (shorter == 0),
            max_source_length=lengths[:, 0] > max_source,
            max_target_length=lengths[:, 1] > max_target,
            max_length_ratio=longer > max_longer,
            duplicate=duplicate,
        )
        first = np.cumsum(reasons, axis=0) == 1
        return DroppedPairs(*np.logical_and(reasons, first))


def _or_infinity(limit: float | None) -> float:
    return math.inf if limit is None else limit


class FilterStatistics:
    """Counts the pairs that are read and, by reason, the pairs that are dropped."""

    def __init__(self) -> None:
        self.pairs_read = 0
        self.dropped = dict.fromkeys(DroppedPairs._fields, 0)

    def add(self, dropped: DroppedPairs) -> None:
        """Adds a result of `find_dropped`; raises `ValueError` if no pair is left."""
        self.pairs_read += len(dropped.empty)
        for reason, mask in dropped._asdict().items():
            self.dropped[reason] += int(mask.sum())
        if self.pairs_read == sum(self.dropped.values()):
            raise ValueError(
                f"At least one pair must pass the filters; all {self.pairs_read:,} "
                f"pairs were dropped: {self.dropped}. Check the text, or raise the "
                "maximum lengths."
            )


# Duplicates.


class PackedFlags:
    """Booleans, stored as one bit each by `np.packbits`."""

    def __init__(self, packed: np.ndarray) -> None:
        self._packed = packed

    @classmethod
    def unset(cls, count: int) -> "PackedFlags":
        """Returns `count` flags that are `False`."""
        return cls(np.broadcast_to(np.uint8(0), count // 8 + 1))

    def between(self, start: int, stop: int) -> np.ndarray:
        """Returns the flags `start` to `stop`, exclusive, as a boolean array."""
        first = start // 8
        bits = np.unpackbits(self._packed[first : -(-stop // 8)])
        return bits[start - 8 * first : stop - 8 * first].astype(bool)


def find_duplicates(
    corpora: Iterable[Iterable[Pair]], chunk: int = 1 << 18
) -> list[PackedFlags]:
    """Flags, for each corpus, the pairs that occur earlier in it or in a corpus before.

    Pairs are compared by hashes of 64 bits. They take 8 bytes per distinct pair, and 16
    bytes while new ones are added. Among ten million distinct pairs, the probability
    that any two have the same hash is 1 in 370,000. `chunk`, a multiple of 8, is how
    many pairs are compared at a time.
    """
    seen = np.empty(0, np.uint64)
    flags = []
    for corpus in corpora:
        packed = [np.empty(0, np.uint8)]
        pairs = iter(corpus)
        while len(hashes := _hashes(itertools.islice(pairs, chunk))):
            distinct, first = np.unique(hashes, return_index=True)
            new = ~_is_in(distinct, seen)
            duplicate = np.ones(len(hashes), bool)
            duplicate[first[new]] = False
            packed.append(np.packbits(duplicate))
            seen = np.concatenate([seen, distinct[new]])
            seen.sort(kind="stable")  # Merges the two sorted parts in place.
        flags.append(PackedFlags(np.concatenate(packed)))
    return flags


def _hashes(pairs: Iterable[Pair]) -> np.ndarray:
    """Returns a hash of each pair, uint64 `(pairs,)`."""
    digests = [
        hashlib.blake2b(
            f"{len(pair[0])}\n{pair[0]}{pair[1]}".encode(), digest_size=8
        ).digest()
        for pair in pairs
    ]
    return np.frombuffer(b"".join(digests), np.uint64)


def _is_in(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Returns for each value whether the sorted array contains it."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    positions = np.searchsorted(ordered, values)
    return ordered.take(positions, mode="clip") == values
