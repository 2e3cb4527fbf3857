"""Callback that shows the progress of `fit`, and logs time left and learning rate."""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence

import keras
from keras import ops

from keras_transformer.backend.keras_internals import (
    count_steps,
    inner_optimizers,
    learning_rate_schedule,
)
from keras_transformer.backend.processes import on_cpu
from keras_transformer.types import Logs, Tensor
from keras_transformer_runtime.arguments import check_ints, check_one_of
from keras_transformer_runtime.display import Display, Stage, format_seconds

# Batches that take this multiple of the shortest time are left out of the estimate.
SLOW = 3.0


class TrainingProgress(keras.callbacks.Callback):
    """Shows the progress of `fit` on one line, and logs time left and learning rate.

    In a terminal or a notebook, a line with motion shows the epoch, the time left, the
    loss and the speed, as far as they fit; a line for each epoch stays. In a log file,
    each epoch is a line:

    ```text
    Epoch 3/40  loss 2.134, valid loss 2.08, bleu 17.2, 21 s, 13 min left
    ```

    The models of this library show it in place of the progress bar of Keras, as their
    `fit` has `verbose`: 0, 1 or 2. For another model, pass `verbose=0` to `fit`.

    These values are in the logs of every batch and of every epoch, for the history and
    for the callbacks that come later in the list (`CSVLogger`, `TensorBoard`):

    - `learning_rate`: the rate of the next update. It is not logged for a
      `keras.optimizers.MultiOptimizer`, which has several.
    - `minutes_left`: the time until the end of the last epoch. In the first epoch, it
      comes from the last batches, without those that take more than three times the
      shortest time, such as those that compile. Later, it comes from the shortest mean
      time of a batch in an epoch, and the shortest time between the last batch of an
      epoch and the next epoch, with validation.
    - `tokens_per_second`: the number of tokens of the current epoch so far, divided by
      the time since it began. In the first epoch this includes compilation. It never
      includes validation.

    The callback does not wait for the device. Callbacks whose scores the line of an
    epoch shows, such as `TranslationQuality`, come earlier in the list.

    Args:
        tokens_per_epoch: int >= 1, number of real target tokens in an epoch, such as
            `ParallelDataset.tokens_per_epoch`. `None` = no `tokens_per_second`.
        metrics: list of str, names of the logs in the line of an epoch. `None` =
            `"loss"` and all of the validation.
        verbose: int, 0: silent; 1: a line with motion; 2: a line for each epoch alone.
            `None` = that of `fit` of a model of this library; otherwise, or if that is
            `"auto"`, 1 in a terminal or a notebook, else 2.
        seconds_after: function of the seconds from the last batch of an epoch to its
            end, which returns how many seconds follow the last epoch. It adds to
            `minutes_left`. `None` = 0.

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

    def __init__(
        self,
        tokens_per_epoch: int | None = None,
        metrics: Sequence[str] | None = None,
        verbose: int | None = None,
        seconds_after: Callable[[float], float] | None = None,
    ) -> None:
        super().__init__()
        check_ints(1, optional=True, tokens_per_epoch=tokens_per_epoch)
        check_one_of((0, 1, 2), optional=True, verbose=verbose)
        self.tokens_per_epoch = tokens_per_epoch
        self.metrics = metrics
        self.verbose = verbose
        self.seconds_after = seconds_after
        self._verbose_of_fit: int | None = None
        self._motion = contextlib.ExitStack()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        # Seconds of a batch, of the last calls.
        self._batch_seconds: collections.deque[float] = collections.deque(maxlen=200)
        self._end_seconds: float | None = None  # Shortest time after the last batch.
        self._epochs: list[tuple[int, float]] = []  # Batches and seconds of epochs.
        self._steps: int | None = None
        self._epoch_began = 0.0
        self._done = 0, 0.0  # Batches of the epoch, and seconds since it began.
        self._validation_batches: int | None = None
        given = self._verbose_of_fit if self.verbose is None else self.verbose
        self._display = Display(given)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self._done[0]:
            seconds = self._seconds_since_last_batch()
            self._end_seconds = min(seconds, self._end_seconds or seconds)
            self._epochs.append(self._done)
        self._epoch, self._epoch_began = epoch, time.perf_counter()
        self._done = 0, 0.0
        self._learning_rate: Callable[[int], dict[str, float]] | None = None
        self._name = f"Epoch {epoch + 1}/{self.params['epochs']}"
        self._stage = Stage(self._name, self._steps)
        self._motion.enter_context(self._display.motion(self._stage))

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        if self._learning_rate is None:
            # Within an epoch, reading the optimizer on JAX waits for the device.
            self._learning_rate = _learning_rates(self.model.optimizer)
            # `Checkpoints` changes the number of steps in its `on_epoch_begin`.
            self._steps = self.params["steps"] or self._steps
            if not self._batch_seconds:
                self._stage.details = ["compiling"]

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        before, began = self._done
        if batch >= before:
            done = min(batch + 1, self._steps or batch + 1)
            self._done = done, time.perf_counter() - self._epoch_began
            self._batch_seconds.append((self._done[1] - began) / (done - before))
        if logs is not None and self._learning_rate is not None:
            logs.update(self._learning_rate(batch + 1))
            self._add_times(logs)
            first_batch = self.params.get("first_batch", 0)
            self._stage.total = self._steps and self._steps + first_batch
            self._stage.done = self._done[0] + first_batch
            self._stage.details = _details(logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._stage.begin(f"{self._name}  validation", self._validation_batches)

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._stage.done = batch + 1

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._validation_batches = self._stage.done
        self._stage.begin(self._stage.name)  # Other callbacks may validate, too.

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._steps = self._steps or self._done[0]
        if logs is None:
            return
        logs.update(_learning_rates(self.model.optimizer)(0))
        self._add_times(logs, self._seconds_since_last_batch())
        self.close()
        seconds = time.perf_counter() - self._epoch_began
        self._display.print(_epoch_line(self._name, logs, self.metrics, seconds))

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.close()

    def close(self) -> None:
        """Removes the line with motion. `fit` calls it, also after an exception."""
        self._motion.close()

    def _seconds_of_batch(self) -> float:
        """Returns the expected time of a batch.

        After the first epoch, which compiles, it is the shortest mean of an epoch. The
        current one counts when a quarter of it is done. Single batches would mislead:
        several may arrive at once, after a pause.
        """
        means = [seconds / batches for batches, seconds in self._epochs[1:]]
        batches, seconds = self._done
        if self._epochs and 4 * batches >= self._epochs[0][0]:
            means.append(seconds / batches)
        if means:
            return min(means)
        least = min(self._batch_seconds)
        typical = [x for x in self._batch_seconds if x <= SLOW * least]
        return sum(typical) / len(typical)

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
        seconds_left = batches_left * self._seconds_of_batch() + ends_left * end
        if self.seconds_after is not None:
            seconds_left += self.seconds_after(end)
        logs["minutes_left"] = seconds_left / 60
        if self.tokens_per_epoch is not None:
            tokens = self.tokens_per_epoch / whole * batches
            logs["tokens_per_second"] = tokens / seconds


def _details(logs: Logs) -> list[str]:
    """Returns what the line of an epoch in progress shows, the most important first."""
    details = []
    if "minutes_left" in logs:
        details.append(f"{format_seconds(60 * logs['minutes_left'])} left")
    if "loss" in logs:
        details.append(f"loss {logs['loss']:.3f}")
    if "tokens_per_second" in logs:
        details.append(f"{logs['tokens_per_second']:,.0f} tokens/s")
    return details


def _epoch_line(
    name: str, logs: Logs, metrics: Sequence[str] | None, seconds: float
) -> str:
    if metrics is None:
        metrics = ["loss", *(each for each in logs if each.startswith("val_"))]
    parts = [
        f"{_label(metric)} {logs[metric]:.4g}"
        for metric in metrics
        if not math.isnan(logs.get(metric, math.nan))
    ]
    parts.append(format_seconds(seconds))
    if left := logs.get("minutes_left"):
        parts.append(f"{format_seconds(60 * left)} left")
    return f"{name}  {', '.join(parts)}"


def _label(metric: str) -> str:
    if metric == "val_loss":
        return "valid loss"
    return metric.removeprefix("val_").replace("_", " ")


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


@contextlib.contextmanager
def shown_progress(callbacks: object, verbose: str | int) -> Iterator[str | int]:
    """Gives `verbose` of `fit` to each `TrainingProgress` among its callbacks.

    Yields the value for Keras: 0 if there is one. `fit` must run within the context.
    """
    given = getattr(callbacks, "callbacks", callbacks)
    known = [] if given is None else keras.tree.flatten(given)
    own = [each for each in known if isinstance(each, TrainingProgress)]
    for each in own:
        each._verbose_of_fit = verbose if isinstance(verbose, int) else None
    try:
        yield 0 if own else verbose
    finally:
        for each in own:
            each._verbose_of_fit = None
            each.close()
