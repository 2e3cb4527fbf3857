"""Batches: an endless stream of them, positions in it, and the arrays of a batch."""

import bisect
import dataclasses
from collections.abc import Callable, Iterator, Sized
from numbers import Integral
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.buckets import Buckets
from keras_transformer.dataset.windows import PairWindow
from keras_transformer_runtime.arguments import check_ints

MAX_EMPTY_WINDOWS = 1000

# A position as JSON values: the fields of `StreamPosition`, or the first two of them.
PositionState: TypeAlias = dict[str, int]

Inputs: TypeAlias = dict[str, np.ndarray]
# Inputs, targets and, if requested, sample weights.
BatchArrays: TypeAlias = (
    tuple[Inputs, np.ndarray] | tuple[Inputs, np.ndarray, np.ndarray]
)
InputSpecs: TypeAlias = dict[str, tf.TensorSpec]
BatchSpecs: TypeAlias = (
    tuple[InputSpecs, tf.TensorSpec] | tuple[InputSpecs, tf.TensorSpec, tf.TensorSpec]
)


class StreamPosition(NamedTuple):
    """A position in the stream of batches."""

    epoch: int  # Complete epochs before the position.
    batch: int  # Batches before the position in its epoch.
    window: int
    offset: int  # Batches after the start of the window; they can end in a later one.


class Window(Protocol):
    """Examples that are sorted into batches together."""

    @property
    def batches(self) -> Sized:
        """The batches, in order."""


WindowT = TypeVar("WindowT", bound=Window)


class BatchStream(Generic[WindowT]):
    """The batches of consecutive windows, divided into epochs of equal size.

    `load` maps the number of a window to the window. Its result must depend on the
    number alone. With `aligned`, each window is one epoch.
    """

    def __init__(
        self, load: Callable[[int], WindowT], batches_per_epoch: int, aligned: bool
    ) -> None:
        self.batches_per_epoch = batches_per_epoch
        self._load = load
        self._aligned = aligned
        self._known_positions = [StreamPosition(0, 0, 0, 0)]  # Sorted.
        self._epoch = 0
        # Start of the next epoch; `None`: the end of the current epoch.
        self._start: StreamPosition | None = self._known_positions[0]

    def epoch(self) -> Iterator[tuple[WindowT, int]]:
        """Yields windows and indices of their batches, to the end of the epoch."""
        position = self._start or self._locate(self._epoch + 1, 0)
        self._start = None
        self._epoch = position.epoch
        yield from self._batches_from(position)

    def state(self, batches: int) -> PositionState:
        """Returns the position after `batches` batches of the current epoch."""
        check_ints(0, batches=batches)
        epochs, batch = divmod(int(batches), self.batches_per_epoch)
        position = self._locate(self._epoch + epochs, batch)
        fields = position._fields[:2] if self._aligned else position._fields
        return {name: getattr(position, name) for name in fields}

    def restore(self, state: PositionState) -> None:
        """Makes the next call of `epoch` start from a position."""
        self._start = self._parse(state)
        self._epoch = self._start.epoch
        self._remember(self._start)

    def at(self, state: PositionState) -> tuple[WindowT, int]:
        """Returns the window at a position and the index of the batch in it."""
        return next(self._batches_from(self._parse(state)))

    def _batches_from(self, position: StreamPosition) -> Iterator[tuple[WindowT, int]]:
        epoch, batch, number, offset = position
        empty_windows = 0
        while batch < self.batches_per_epoch:
            window = self._load(number)
            size = len(window.batches)
            empty_windows = 0 if size else empty_windows + 1
            if empty_windows == MAX_EMPTY_WINDOWS:
                raise ValueError(
                    "The text must contain pairs that pass the filters; "
                    f"{empty_windows} consecutive windows, from number "
                    f"{number + 2 - empty_windows} on, contain none. With `shard`, "
                    "these are the windows of this worker: choose another `window`, "
                    "so that it gets other lines."
                )
            if offset < size:
                self._remember(StreamPosition(epoch, batch, number, offset))
            remaining = self.batches_per_epoch - batch
            for index in range(offset, min(offset + remaining, size)):
                yield window, index
                batch += 1
            offset = max(0, offset - size)
            number += 1

    def _remember(self, position: StreamPosition) -> None:
        """Inserts a position into the sorted list of known positions."""
        index = bisect.bisect_left(self._known_positions, position)
        if self._known_positions[index : index + 1] != [position]:
            self._known_positions.insert(index, position)

    def _locate(self, epoch: int, batch: int) -> StreamPosition:
        """Returns a position, relative to the nearest known position before it."""
        if self._aligned:
            return StreamPosition(epoch, batch, epoch, batch)
        after = StreamPosition(epoch, batch + 1, 0, 0)
        near = self._known_positions[
            bisect.bisect_left(self._known_positions, after) - 1
        ]
        epochs, batches = epoch - near.epoch, batch - near.batch
        offset = near.offset + epochs * self.batches_per_epoch + batches
        return StreamPosition(epoch, batch, near.window, offset)

    def _parse(self, state: PositionState) -> StreamPosition:
        """Converts a state to a position, or raises `ValueError`."""
        fields = StreamPosition._fields
        if (
            not isinstance(state, dict)
            or set(state) not in (set(fields[:2]), set(fields))
            or not all(isinstance(v, Integral) and v >= 0 for v in state.values())
            or state["batch"] >= self.batches_per_epoch
        ):
            raise ValueError(
                "`state` must be a result of `state(batches)` of a dataset with the "
                f"same arguments, with `batch` below {self.batches_per_epoch}; "
                f"received `state={state}`."
            )
        numbers = {name: int(number) for name, number in state.items()}
        if self._aligned or "window" not in state:
            return self._locate(numbers["epoch"], numbers["batch"])
        return StreamPosition(**numbers)


@dataclasses.dataclass(frozen=True)
class Collator:
    """Converts the pairs of a batch to padded arrays, with targets shifted by one."""

    buckets: Buckets
    pad_token_ids: tuple[int, int]
    sample_weights: bool  # Whether batches have them: 1 for tokens, 0 for padding.

    def __call__(self, window: PairWindow, index: int) -> BatchArrays:
        """Returns the arrays of a batch of a window."""
        batch = window.batches[index]
        source_length, target_length = self.buckets.lengths[batch.bucket].tolist()
        source_pad, target_pad = self.pad_token_ids
        source, target, _ = window.pairs
        # The target with both start and end token.
        token_ids = target.pad(batch.pairs, target_length + 1, target_pad)
        lengths = np.where(batch.pairs < 0, 0, target.lengths[batch.pairs] - 1)
        is_token = np.arange(target_length) < lengths[:, None]
        inputs = {
            "encoder_token_ids": source.pad(batch.pairs, source_length, source_pad),
            "decoder_token_ids": np.where(
                is_token, token_ids[:, :-1], np.int32(target_pad)
            ),
        }
        if self.sample_weights:
            return inputs, token_ids[:, 1:], is_token.astype(np.float32)
        return inputs, token_ids[:, 1:]

    @property
    def signature(self) -> BatchSpecs:
        """The `tf.data` signature of the batches, with `None` for sizes that vary."""
        rows, source_length, target_length = (
            sizes.pop() if len(sizes) == 1 else None
            for sizes in map(set, (self.buckets.rows, *self.buckets.lengths.T.tolist()))
        )
        target = tf.TensorSpec([rows, target_length], tf.int32)
        inputs = {
            "encoder_token_ids": tf.TensorSpec([rows, source_length], tf.int32),
            "decoder_token_ids": target,
        }
        if self.sample_weights:
            return inputs, target, tf.TensorSpec([rows, target_length], tf.float32)
        return inputs, target
