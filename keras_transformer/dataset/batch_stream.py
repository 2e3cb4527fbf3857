"""An endless stream of batches, cut into epochs, and positions in it."""

import bisect
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import NamedTuple

from keras_transformer.arguments import check_ints
from keras_transformer.dataset.buckets import Batch
from keras_transformer.dataset.windows import Window

MOST_EMPTY_WINDOWS = 1000


class Position(NamedTuple):
    """A position in the stream.

    Attributes:
        epoch: epochs before it.
        batch: batches of its epoch before it.
        window: window to start from.
        offset: batches from the start of that window to the position; if the window
            has fewer, the position is in a later window.
    """

    epoch: int
    batch: int
    window: int
    offset: int


class BatchStream:
    """Batches of one window after another, cut into epochs of equally many.

    Args:
        load: function from a window's number, counted from 0, to the window; it
            depends on nothing else.
        batches_per_epoch: batches in an epoch.
        aligned: whether each window is one epoch.
    """

    def __init__(
        self, load: Callable[[int], Window], batches_per_epoch: int, aligned: bool
    ):
        self.batches_per_epoch = batches_per_epoch
        self._load = load
        self._aligned = aligned
        self._known = [Position(0, 0, 0, 0)]  # In order.
        self._epoch = 0
        self._start: Position | None = self._known[0]  # Of the next epoch, if chosen.

    def epoch(self) -> Iterator[tuple[Window, Batch]]:
        """Yields the batches from the current position to the end of its epoch."""
        position = self._start or self._find(self._epoch + 1, 0)
        self._start = None
        self._epoch = position.epoch
        yield from self._from(position)

    def state(self, batches: int) -> dict[str, int]:
        """Returns the position after so many batches of the current epoch."""
        check_ints(0, batches=batches)
        epochs, batch = divmod(int(batches), self.batches_per_epoch)
        position = self._find(self._epoch + epochs, batch)
        fields = position._fields[:2] if self._aligned else position._fields
        return {name: getattr(position, name) for name in fields}

    def restore(self, state: dict[str, int]) -> None:
        """Makes `epoch` start from a position that `state` returned."""
        self._start = self._parse(state)
        self._epoch = self._start.epoch
        self._learn(self._start)

    def at(self, state: dict[str, int]) -> tuple[Window, Batch]:
        """Returns the batch at a position that `state` returned."""
        return next(self._from(self._parse(state)))

    def _from(self, position: Position) -> Iterator[tuple[Window, Batch]]:
        epoch, batch, number, offset = position
        empty = 0
        while batch < self.batches_per_epoch:
            window = self._load(number)
            empty = 0 if window.batches else empty + 1
            if empty == MOST_EMPTY_WINDOWS:
                raise ValueError(
                    f"The text must have pairs to train on; {empty} windows in a row, "
                    f"from number {number + 1 - empty} on, have none. With `shard` "
                    "these are this worker's: choose another `window`, so that it "
                    "gets other lines."
                )
            if offset < len(window.batches):
                self._learn(Position(epoch, batch, number, offset))
            for found in window.batches[offset:][: self.batches_per_epoch - batch]:
                yield window, found
                batch += 1
            offset = max(0, offset - len(window.batches))
            number += 1

    def _learn(self, position: Position) -> None:
        place = bisect.bisect_left(self._known, position)
        if self._known[place : place + 1] != [position]:
            self._known.insert(place, position)

    def _find(self, epoch: int, batch: int) -> Position:
        """Derives a position from the nearest known one before it."""
        if self._aligned:
            return Position(epoch, batch, epoch, batch)
        wanted = Position(epoch, batch + 1, 0, 0)
        near = self._known[bisect.bisect_left(self._known, wanted) - 1]
        epochs, batches = epoch - near.epoch, batch - near.batch
        offset = near.offset + epochs * self.batches_per_epoch + batches
        return Position(epoch, batch, near.window, offset)

    def _parse(self, state: dict[str, int]) -> Position:
        if (
            not isinstance(state, dict)
            or set(state) not in (set(Position._fields[:2]), set(Position._fields))
            or not all(isinstance(v, Integral) and v >= 0 for v in state.values())
            or state["batch"] >= self.batches_per_epoch
        ):
            raise ValueError(
                "`state` must be what `state(batches)` of such a dataset gave, with a "
                f"`batch` below {self.batches_per_epoch}; received `state={state}`."
            )
        numbers = {name: int(number) for name, number in state.items()}
        if self._aligned or "window" not in state:
            return self._find(numbers["epoch"], numbers["batch"])
        return Position(**numbers)
