"""Callback that stops at batches whose loss is NaN or infinite, or skips them."""

import math
import os
import pathlib
import threading
import warnings
from typing import Literal

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.keras_internals import count_steps
from keras_transformer.training.skip_non_finite import SkipNonFinite
from keras_transformer.training.training_data import DataCallback, TrainingData
from keras_transformer.types import Logs
from keras_transformer_runtime.arguments import check_ints, check_one_of
from keras_transformer_runtime.files import write_json

# Of all callbacks, as a lock of each could not be copied with it.
_LOCK = threading.Lock()


class NonFiniteLoss(DataCallback):
    """Stops at the first batch whose loss is NaN or infinite, or skips such batches.

    The message has the numbers of the epoch and the batch, counted from 1, and, with
    `data`, the path of a file with the batch: its position in the data, its texts and
    its token ids.

    `"stop"` raises an error. Nothing is saved after it; a checkpoint of `Checkpoints`
    is from an earlier batch. The previous batch may also be the cause, if its gradients
    were not finite, so that the weights became NaN. The message then mentions this, and
    the file also has that batch if it belongs to the same epoch. Optimizers that skip
    such updates exclude this cause.

    `"skip"` warns and continues: the batch makes no update and is excluded from the
    metrics. The optimizer must be a `SkipNonFinite`, which skips the update. It also
    skips updates whose gradients alone are not finite. A warning at the end of the
    epoch has their number, except with loss scaling, which is expected to cause some.
    The logs of each epoch have the number of all skipped updates, `skipped_batches`.
    After `patience` consecutive skipped updates, an error is raised. `"skip"` waits for
    each step, which makes JAX and GPUs slower. Put the callback before those that use
    the logs.

    Args:
        action: `"stop"` or `"skip"`.
        data: the `ParallelDataset` whose `dataset` is passed to `fit`. `None` = the
            batch is not saved.
        folder: str or path, folder for the file with the batch. It is created if it
            does not exist.
        patience: int >= 1, consecutive skipped updates after which `"skip"` stops.

    Raises:
        ValueError: if `action` or `patience` has an invalid value; from `fit`, if the
            optimizer cannot skip updates.
        FloatingPointError: from `fit`, to stop.

    Example:

    ```python
    model.compile(
        optimizer=SkipNonFinite(keras.optimizers.Adam(1e-3)),
        loss=LabelSmoothedCrossEntropy(),
    )
    skip = NonFiniteLoss("skip", data=train, folder="runs/en-de")
    model.fit(train.dataset, epochs=40, shuffle=False, callbacks=[skip])
    ```
    """

    # Checkpoints store these names.
    checkpointed_attributes = ("skipped_batches", "_in_a_row", "_unseen")

    def __init__(
        self,
        action: Literal["stop", "skip"] = "stop",
        data: TrainingData | None = None,
        folder: str | os.PathLike = ".",
        patience: int = 100,
    ) -> None:
        super().__init__()
        check_ints(1, patience=patience)
        check_one_of(("stop", "skip"), action=action)
        self.action = action
        self.data = data
        self.folder = pathlib.Path(folder)
        self.patience = patience
        # Lets Keras read the logs in another thread, while `fit` continues.
        self.async_safe = action == "stop"

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.skipped_batches = self._in_a_row = 0
        self._steps_per_execution = self.model.steps_per_execution
        optimizer = self.model.optimizer
        skipping = SkipNonFinite, keras.optimizers.LossScaleOptimizer
        self._skips_gradients = isinstance(optimizer, skipping)
        if self.action == "skip" and not isinstance(optimizer, SkipNonFinite):
            raise ValueError(
                "`action='skip'` requires an optimizer that can skip updates; "
                f"received the optimizer {type(optimizer).__name__}. Compile with "
                "`SkipNonFinite(optimizer)`, around any `LossScaleOptimizer`."
            )

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch
        # The last batch with a finite loss, and the first with another loss.
        self._last_finite: int = -1
        self._first_non_finite: float = math.inf
        # `_unseen` is the number of batches that were skipped with a finite loss.
        self._batches = self._unseen = 0

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        if self.action == "stop":
            self._stop_if_found()
        elif batch == 0:
            self._metrics, self._updates = self._copy_metrics(), self._count_updates()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        logs = {} if logs is None else logs
        # The loss is the mean over the epoch so far, which remains NaN.
        with _LOCK:
            if math.isfinite(logs.get("loss", 0.0)):
                self._last_finite = max(self._last_finite, batch)
            else:
                self._first_non_finite = min(self._first_non_finite, batch)
        if self.action == "skip":
            self._count_skipped(batch)
            self._skip_if_found(logs)
            if self._in_a_row >= self.patience:
                raise FloatingPointError(self._patience_message())

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.action == "stop":
            self._stop_if_found()
        else:
            self._warn_of_unseen()
            if logs is not None:
                logs["skipped_batches"] = self.skipped_batches
            self.skipped_batches = 0

    def _stop_if_found(self) -> None:
        # Logs that other threads read may arrive out of order, those before it late.
        if self._first_non_finite - self._last_finite <= self._steps_per_execution:
            raise FloatingPointError(
                f"{self._message()} Lower the learning rate, clip gradients, or skip "
                "such batches with `action='skip'`."
            )

    def _skip_if_found(self, logs: Logs) -> None:
        if self._first_non_finite == math.inf:
            self._metrics = self._copy_metrics()
            return
        warnings.warn(f"{self._message()} The batch is skipped.", stacklevel=2)
        self._restore_metrics()
        for name, value in self.model.get_metrics_result().items():
            logs[name] = float(value)
        self._last_finite = int(self._first_non_finite)
        self._first_non_finite = math.inf

    def _count_skipped(self, batch: int) -> None:
        # The last execution of several steps may exceed the end of the data.
        batches = int(min(batch + 1, self.params["steps"] or math.inf))
        total_updates = self._count_updates()
        updates = total_updates - self._updates
        expected = batches - self._batches
        self._batches, self._updates = batches, total_updates
        if self._steps_per_execution > 1 and not self.params["steps"]:
            # The data may have ended within the execution.
            expected = updates + (self._first_non_finite < math.inf)
        skipped = max(0, expected - updates)
        self.skipped_batches += skipped
        if updates and self._steps_per_execution > 1:
            self._in_a_row = 0  # It is not known which steps of the execution they are.
        else:
            self._in_a_row = skipped + (0 if updates else self._in_a_row)
        if self._first_non_finite == math.inf:
            self._unseen += skipped

    def _count_updates(self) -> int:
        # With gradient accumulation, `iterations` counts fewer than the batches.
        optimizer = self.model.optimizer.inner_optimizer
        return int(ops.convert_to_numpy(count_steps(optimizer)))

    def _warn_of_unseen(self) -> None:
        if self._unseen and not self.model.optimizer.has_loss_scaling:
            warnings.warn(
                f"In epoch {self._epoch + 1}, {self._unseen} of "
                f"{self._batches_of_epoch()} batches made no update: their gradients "
                "were NaN or infinite, although their loss was finite.",
                stacklevel=2,
            )

    def _batches_of_epoch(self) -> int:
        """Returns the number of batches so far, including those before a resume."""
        return self._batches + self.params.get("first_batch", 0)

    def _patience_message(self) -> str:
        return (
            f"{self._in_a_row} batches in a row, up to batch "
            f"{self._batches_of_epoch()} of epoch {self._epoch + 1}, made no update: "
            "their loss or gradients were NaN or infinite. Lower the learning rate, "
            "clip gradients, look for a division by zero, or use a greater `patience`."
        )

    def _copy_metrics(self) -> list[np.ndarray]:
        return [ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def _restore_metrics(self) -> None:
        variables = self.model.metrics_variables
        if len(variables) > len(self._metrics):  # This first step has created them.
            self.model.reset_metrics()
        else:
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(value)

    def _message(self) -> str:
        """Returns the position of the batch, or of those of one execution, as text."""
        resumed = self.params.get("first_batch", 0)
        first = self._last_finite + 1 + resumed
        last = int(self._first_non_finite) + resumed
        batches = f"batch {last + 1}"
        if first < last:
            batches = f"one of the batches {first + 1} to {last + 1}"
        message = f"The loss is NaN or infinite in epoch {self._epoch + 1}, {batches}."
        if not self._skips_gradients and (first or self._epoch):
            message += " The gradients of the previous batch may also be the cause."
            first = max(0, first - 1)
        if self.data is None:
            return message
        path = self.folder / f"non-finite-{self._epoch + 1:04}-{last + 1:06}.json"
        try:
            self._save_batches(self.data, path, range(first, last + 1))
        except OSError as error:
            return f"{message} The batch could not be saved ({error})."
        return f"{message} The batch is saved in {path}."

    def _save_batches(
        self, data: TrainingData, path: pathlib.Path, numbers: range
    ) -> None:
        content = []
        for number in numbers:
            state = data.state(number)
            arrays = keras.tree.map_structure(np.asarray, data.batch(state))
            content.append(
                {
                    "position": state,
                    "lines": data.lines(state),
                    "batch": keras.tree.map_structure(np.ndarray.tolist, arrays),
                }
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


class NonFiniteWarning(keras.callbacks.Callback):
    """Warns once if the loss of an epoch is NaN or infinite; `fit` adds it."""

    _has_warned = False

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self._has_warned or math.isfinite((logs or {}).get("loss", 0.0)):
            return
        self._has_warned = True
        warnings.warn(
            f"The loss is NaN or infinite in epoch {epoch + 1}. Training continues, "
            "and the weights may be NaN. To stop at the first such batch and see it, "
            "pass the callback `NonFiniteLoss()` to `fit`.",
            stacklevel=2,
        )

    @classmethod
    def added_to(cls, callbacks: object) -> object:
        """Returns the argument `callbacks` of `fit` with this callback, if needed."""
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        given = [] if callbacks is None else keras.tree.flatten(callbacks)
        stopping = NonFiniteLoss, keras.callbacks.TerminateOnNaN
        if any(isinstance(each, stopping) for each in given):
            return callbacks
        return [cls(), *given]
