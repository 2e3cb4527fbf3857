"""Protocol of training data with positions, its checks, and callbacks that have it."""

import copy
import math
from typing import Protocol, Self, TypeAlias

import keras

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

    @property
    def checksums(self) -> dict[str, int]:
        """Numbers that distinguish the data, by what they depend on."""

    def state(self, batches: int) -> DataState:
        """Returns the position after `batches` batches of the current epoch."""

    def restore(self, state: DataState) -> None:
        """Makes the next iteration start at a position."""

    def start_epoch(self, epoch: int) -> None:
        """Makes the next iteration start at the beginning of an epoch."""

    def batch(self, state: DataState) -> tuple[object, ...]:
        """Returns the batch at a position, as NumPy arrays."""

    def lines(self, state: DataState) -> list[tuple[str, str]]:
        """Returns the (source, target) texts of the batch at a position."""


def check_data(data: TrainingData | None, **requiring: int | None) -> None:
    """Checks that data are given if arguments require them, and have positions."""
    for name, value in requiring.items():
        if data is None and value is not None:
            raise ValueError(
                f"`data` must be given with `{name}`, so that a run can resume within "
                f"an epoch; received `data=None` and `{name}={value}`."
            )
    if data is not None and not hasattr(data, "restore"):
        raise ValueError(
            "`data` must be the `ParallelDataset` whose `dataset` is passed to `fit`; "
            f"received `data={data!r}`."
        )


def check_steps(data: TrainingData | None, steps: int | None) -> None:
    """Checks that an epoch of `fit` is an epoch of the data."""
    if data is not None and steps != data.batches_per_epoch:
        raise ValueError(
            "`data` must be the `ParallelDataset` whose `dataset` is passed to `fit`, "
            f"without `steps_per_epoch`; received `data` of {data.batches_per_epoch} "
            f"batches per epoch, where `fit` makes {steps} steps."
        )


def check_total_steps(
    data: TrainingData, total_steps: int, epochs: int, steps_per_execution: int
) -> None:
    """Checks that `fit` can end after a number of updates."""
    needed = math.ceil(total_steps / data.batches_per_epoch)
    if epochs != needed:
        raise ValueError(
            f"`epochs` of `fit` must be {needed} for `total_steps={total_steps}` and "
            f"{data.batches_per_epoch} batches per epoch; received `epochs={epochs}`."
        )
    if steps_per_execution != 1:
        raise ValueError(
            "`steps_per_execution` of `compile` must be 1 with `total_steps`; received "
            f"`steps_per_execution={steps_per_execution}`, "
            f"`total_steps={total_steps}`."
        )


def data_identity(data: TrainingData | None) -> dict[str, int] | None:
    """Returns the sizes and the checksums that distinguish datasets."""
    if data is None:
        return None
    return {
        "batches_per_epoch": int(data.batches_per_epoch),
        "tokens_per_epoch": int(data.tokens_per_epoch),
        **data.checksums,
    }


class DataCallback(keras.callbacks.Callback):
    """A callback whose copies share its `data`, whose `dataset` is passed to `fit`."""

    data: TrainingData | None

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        memo.setdefault(id(self.data), self.data)
        copied: Self = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied
