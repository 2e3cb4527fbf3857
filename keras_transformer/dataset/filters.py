"""Decides which pairs are kept, and counts those that are not."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class PairFilter:
    """The conditions under which a pair is kept.

    Attributes:
        max_source_length: longest source, in tokens with end; `None` = no limit.
        max_target_length: longest target, in tokens with end; `None` = no limit.
        max_length_ratio: most tokens of the longer side per token of the shorter
            one, without end; `None` = no limit.
    """

    max_source_length: int | None
    max_target_length: int | None
    max_length_ratio: float | None

    @property
    def max_lengths(self) -> tuple[float, float]:
        """Longest source and target, infinite where there is no limit."""
        return _or_any(self.max_source_length), _or_any(self.max_target_length)

    def faults(
        self, lengths: np.ndarray, duplicates: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns, by reason, which pairs to drop, each for one reason at most.

        Args:
            lengths: tokens per side, with end: integer `(pairs, 2)`.
            duplicates: whether a pair has occurred before: boolean `(pairs,)`.
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
    """Counts the pairs that were read and, by reason, those that were dropped."""

    def __init__(self) -> None:
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
