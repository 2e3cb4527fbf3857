"""Callback that logs learning rate, time left and tokens per second."""

import collections
import time
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.backend.keras_internals import (
    count_steps,
    inner_optimizers,
    learning_rate_schedule,
)
from keras_transformer.backend.processes import on_cpu
from keras_transformer.types import Logs, Tensor
from keras_transformer_runtime.arguments import check_ints

# Batches that take this multiple of the shortest time are left out of the estimate.
SLOW = 3.0


class TrainingProgress(keras.callbacks.Callback):
    """Logs learning rate, time left and tokens per second.

    The values are in Keras's progress bar after every batch. They are also in the logs
    of every epoch, for the history and for the callbacks that come later in the list
    (`CSVLogger`, `TensorBoard`):

    - `learning_rate`: the rate of the next update. It is not logged for a
      `keras.optimizers.MultiOptimizer`, which has several.
    - `minutes_left`: the time until the end of the last epoch, from the mean time of
      the last batches and, after the first epoch, the shortest time between the last
      batch of an epoch and the next epoch, with validation. Batches that take more
      than three times the shortest time, such as those that compile, are left out.
    - `tokens_per_second`: the number of tokens of the current epoch so far, divided by
      the time since it began. In the first epoch this includes compilation. It never
      includes validation.

    The callback does not wait for the device.

    Args:
        tokens_per_epoch: int >= 1, number of real target tokens in an epoch, such as
            `ParallelDataset.tokens_per_epoch`. `None` = no `tokens_per_second`.

    Raises:
        ValueError: if `tokens_per_epoch` is below 1.

    Example:

    ```python
    progress = TrainingProgress(tokens_per_epoch=train.tokens_per_epoch)
    model.fit(train.dataset, epochs=40, shuffle=False, callbacks=[progress])
    ```
    """

    # Lets Keras call `on_train_batch_end` in another thread, without waiting for it.
    async_safe = True

    def __init__(self, tokens_per_epoch: int | None = None) -> None:
        super().__init__()
        check_ints(1, optional=True, tokens_per_epoch=tokens_per_epoch)
        self.tokens_per_epoch = tokens_per_epoch

    def on_train_begin(self, logs: Logs | None = None) -> None:
        # Seconds of a batch, of the last calls.
        self._batch_seconds: collections.deque[float] = collections.deque(maxlen=200)
        self._end_seconds: float | None = None  # Shortest time after the last batch.
        self._steps: int | None = None
        self._epoch_began = 0.0
        self._done = 0, 0.0  # Batches of the epoch, and seconds since it began.

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self._done[0]:
            seconds = self._seconds_since_last_batch()
            self._end_seconds = min(seconds, self._end_seconds or seconds)
        self._epoch, self._epoch_began = epoch, time.perf_counter()
        self._done = 0, 0.0
        self._learning_rate: Callable[[int], dict[str, float]] | None = None

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        if self._learning_rate is None:
            # Within an epoch, reading the optimizer on JAX waits for the device.
            self._learning_rate = _learning_rates(self.model.optimizer)
            # `Checkpoints` changes the number of steps in its `on_epoch_begin`.
            self._steps = self.params["steps"] or self._steps

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        before, began = self._done
        if batch >= before:
            done = min(batch + 1, self._steps or batch + 1)
            self._done = done, time.perf_counter() - self._epoch_began
            self._batch_seconds.append((self._done[1] - began) / (done - before))
        if logs is not None and self._learning_rate is not None:
            logs.update(self._learning_rate(batch + 1))
            self._add_times(logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._steps = self._steps or self._done[0]
        if logs is not None:
            logs.update(_learning_rates(self.model.optimizer)(0))
            self._add_times(logs, self._seconds_since_last_batch())

    def _seconds_since_last_batch(self) -> float:
        return time.perf_counter() - self._epoch_began - self._done[1]

    def _add_times(self, logs: Logs, end_seconds: float | None = None) -> None:
        """Adds `minutes_left` and `tokens_per_second`."""
        batches, seconds = self._done
        if not (self._steps and batches):  # The size of the data is not yet known.
            return
        first_batch = self.params.get("first_batch", 0)  # Set when an epoch is resumed.
        # `Checkpoints` sets both in a run whose last epoch may be shorter.
        whole = self.params.get("batches_per_epoch", self._steps + first_batch)
        total = self.params.get("total_steps", self.params["epochs"] * whole)
        batches_left = total - self._epoch * whole - first_batch - batches
        ends_left = self.params["epochs"] - self._epoch - (end_seconds is not None)
        end = min(
            (x for x in (end_seconds, self._end_seconds) if x is not None), default=0.0
        )
        least = min(self._batch_seconds)
        typical = [x for x in self._batch_seconds if x <= SLOW * least]
        seconds_left = batches_left * sum(typical) / len(typical) + ends_left * end
        logs["minutes_left"] = seconds_left / 60
        if self.tokens_per_epoch is not None:
            tokens = self.tokens_per_epoch / whole * batches
            logs["tokens_per_second"] = tokens / seconds


def _learning_rates(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[[int], dict[str, float]]:
    """Returns a function from a number of further batches to the log of the rate."""
    optimizer, *others = inner_optimizers(optimizer)
    if others:
        return lambda batches: {}
    schedule = learning_rate_schedule(optimizer)
    if schedule is None:
        constant = {"learning_rate": _to_float(optimizer.learning_rate)}
        return lambda batches: constant
    # Batches; `iterations` counts updates, fewer with gradient accumulation.
    iterations = int(ops.convert_to_numpy(count_steps(optimizer)))

    def scheduled(batches: int) -> dict[str, float]:
        with on_cpu():  # An accelerator would finish its steps first.
            value = schedule(ops.convert_to_tensor(iterations + batches))
            return {"learning_rate": _to_float(value)}

    return scheduled


def _to_float(tensor: Tensor) -> float:
    return float(ops.convert_to_numpy(tensor))
