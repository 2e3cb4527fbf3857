"""Protocol of training data with positions."""

from typing import Any, Protocol, TypeAlias

# A position in the data: JSON values, from `TrainingData.state`.
DataState: TypeAlias = dict[str, int]


class TrainingData(Protocol):
    """Data whose batches have positions, such as `ParallelDataset`.

    Its `dataset` is passed to `fit`. Epochs and batches are counted from 0.
    """

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in an epoch."""

    @property
    def tokens_per_epoch(self) -> int:
        """Number of real target tokens in an epoch."""

    def state(self, batches: int) -> DataState:
        """Returns the position after so many batches of the current epoch."""

    def restore(self, state: DataState) -> None:
        """Makes the next iteration start at a position."""

    def start_epoch(self, epoch: int) -> None:
        """Makes the next iteration start at the beginning of an epoch."""

    def batch(self, state: DataState) -> tuple[Any, ...]:
        """Returns the batch at a position, as NumPy arrays."""

    def lines(self, state: DataState) -> list[tuple[str, str]]:
        """Returns the (source, target) texts of the batch at a position."""
