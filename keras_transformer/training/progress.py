"""Shows the progress of a training run."""

import time
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.backend.keras_internals import (
    count_steps,
    learning_rate_schedule,
)


class TrainingProgress(keras.callbacks.Callback):
    """Adds learning rate, time left and tokens per second to the logs.

    They appear in Keras's progress bar after every batch, and in the logs of every
    epoch for the callbacks that come later in the list (`CSVLogger`, `TensorBoard`) and
    for the history:

    - `learning_rate`: that of the next update. A `keras.optimizers.MultiOptimizer` has
      several, and none is shown.
    - `minutes_left`: until the end of the last epoch. The first epoch extrapolates
      from its batches so far, later ones from the whole previous epoch, including
      validation and everything else.
    - `tokens_per_second`: tokens trained on in the epoch so far, divided by the time
      since it began. The first epoch includes compilation; validation never counts.

    It never waits for a device.

    Args:
        tokens_per_epoch: int >= 1, the real target tokens of an epoch, such as
            `ParallelDataset.tokens_per_epoch`; `None` = no `tokens_per_second`.

    Raises:
        ValueError: if `tokens_per_epoch` is below 1.

    Example:

    ```python
    progress = TrainingProgress(tokens_per_epoch=train.tokens_per_epoch)
    model.fit(train.dataset, epochs=40, shuffle=False, callbacks=[progress])
    ```
    """

    # Keras may call the end of a batch from another thread, so that none waits.
    async_safe = True

    def __init__(self, tokens_per_epoch: int | None = None) -> None:
        super().__init__()
        check_ints(1, optional=True, tokens_per_epoch=tokens_per_epoch)
        self.tokens_per_epoch = tokens_per_epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self._seconds_per_batch: float | None = None
        self._steps: int | None = None
        self._epoch_began = 0.0
        self._done = 0, 0.0  # batches of the epoch, and seconds since it began

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._set_seconds_per_batch()
        self._epoch, self._epoch_began = epoch, time.perf_counter()
        self._done = 0, 0.0
        self._learning_rate: Any = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._learning_rate is None:  # On JAX the optimizer is out of reach later.
            self._learning_rate = _learning_rates(self.model.optimizer)
            # `Checkpoints` sets it for a resumed epoch, after ours has begun.
            self._steps = self.params["steps"] or self._steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch >= self._done[0]:
            done = min(batch + 1, self._steps or batch + 1)
            self._done = done, time.perf_counter() - self._epoch_began
        logs.update(self._learning_rate(batch + 1))
        self._add_times(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._set_seconds_per_batch()
        self._steps = self._steps or self._done[0]
        logs.update(_learning_rates(self.model.optimizer)(0))
        self._add_times(logs)

    def _set_seconds_per_batch(self) -> None:
        """Takes the mean over the epoch so far, including its validation."""
        if self._done[0]:
            seconds = time.perf_counter() - self._epoch_began
            self._seconds_per_batch = seconds / self._done[0]

    def _add_times(self, logs: dict[str, Any]) -> None:
        batches, seconds = self._done
        if not (self._steps and batches):  # Data of unknown size, before their end.
            return
        done_before = self.params.get("first_batch", 0)  # by a run that is resumed
        steps = self._steps + done_before
        to_do = (self.params["epochs"] - self._epoch) * steps - done_before - batches
        seconds_per_batch = self._seconds_per_batch or seconds / batches
        logs["minutes_left"] = to_do * seconds_per_batch / 60
        if self.tokens_per_epoch is not None:
            tokens = self.tokens_per_epoch / steps * batches
            logs["tokens_per_second"] = tokens / seconds


def _learning_rates(optimizer: Any) -> Callable[[int], dict[str, float]]:
    """Returns a function from further batches to the learning rate, if there is one."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    if hasattr(optimizer, "optimizers"):
        return lambda batches: {}
    schedule = learning_rate_schedule(optimizer)
    if schedule is None:
        constant = {"learning_rate": _to_float(optimizer.learning_rate)}
        return lambda batches: constant
    # Batches; `iterations` are updates, with gradient accumulation fewer.
    iterations = int(ops.convert_to_numpy(count_steps(optimizer)))

    def scheduled(batches: int) -> dict[str, float]:
        with keras.device("cpu"):  # so as not to wait for what an accelerator has to do
            value = schedule(ops.convert_to_tensor(iterations + batches))
            return {"learning_rate": _to_float(value)}

    return scheduled


def _to_float(tensor: Any) -> float:
    return float(ops.convert_to_numpy(tensor))
