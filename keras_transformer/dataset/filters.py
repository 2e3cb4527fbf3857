"""Decides which pairs are kept, and counts the others."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class PairFilter:
    """What a pair must be to be kept.

    Attributes:
        max_source_length: Longest source, in tokens with end; `None`: any.
        max_target_length: Longest target, in tokens with end; `None`: any.
        max_length_ratio: Most tokens of the longer side for one of the shorter one,
            without end; `None`: any.
    """

    max_source_length: int | None
    max_target_length: int | None
    max_length_ratio: float | None

    @property
    def max_lengths(self) -> tuple[float, float]:
        """Longest source and target, infinite where any may be."""
        return _or_any(self.max_source_length), _or_any(self.max_target_length)

    def faults(
        self, lengths: np.ndarray, duplicates: np.ndarray
    ) -> dict[str, np.ndarray]:
        """For each reason the pairs to leave out, none for two reasons: boolean.

        Args:
            lengths: Tokens a side, with end: integer `(pairs, 2)`.
            duplicates: Whether a pair was there before: boolean `(pairs,)`.
        """
        most_source, most_target = self.max_lengths
        shorter, longer = lengths.min(axis=1) - 1, lengths.max(axis=1) - 1
        most = np.maximum(shorter, 1) * _or_any(self.max_length_ratio)
        faults = {
            "empty": shorter == 0,
            "max_source_length": lengths[:, 0] > most_source,
            "max_target_length": lengths[:, 1] > most_target,
            "max_length_ratio": longer > most,
            "duplicate": duplicates,
        }
        kept = np.ones(len(lengths), bool)
        for reason, fault in faults.items():
            faults[reason] = fault & kept
            kept &= ~fault
        return faults


def _or_any(limit: float | None) -> float:
    return float("inf") if limit is None else limit


class Account:
    """Counts the pairs that were read and, by reason, those that were left out."""

    def __init__(self):
        self.pairs_read = 0
        self.dropped: dict[str, int] = {}

    def add(self, faults: dict[str, np.ndarray]) -> None:
        """Counts pairs by the `faults` that a `PairFilter` found."""
        self.pairs_read += len(faults["empty"])
        for reason, fault in faults.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + int(fault.sum())
        if self.pairs_read == sum(self.dropped.values()):
            raise ValueError(
                f"At least one pair must be left; all {self.pairs_read:,} were "
                f"dropped: {self.dropped}. Check the text or raise the maximal lengths."
            )
