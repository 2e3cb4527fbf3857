"""Handles batches whose loss is NaN or infinite: stop and show why, or skip them."""

import math
import os
import pathlib
import threading
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.backend.keras_internals import count_steps
from keras_transformer.files import write_json
from keras_transformer.training.skip_non_finite import SkipNonFinite


class NonFiniteLoss(keras.callbacks.Callback):
    """Stops at the first batch whose loss is NaN or infinite, or skips such batches.

    The message names the epoch, the batch and, with `data`, a file that holds the
    batch: its position in the data, its texts and its token ids.

    `"stop"` raises an error. Nothing more of the run is saved; what `Checkpoints` has
    saved is from before. The cause may also be the batch before, if its gradients were
    not finite and made the weights so: then it is named as well, and saved if it is of
    the same epoch, unless the optimizer is one that leaves such updates out.

    `"skip"` warns and goes on: the batch makes no update and does not count in the
    metrics. The optimizer must be a `SkipNonFinite`, which skips the update. It also
    skips those whose gradients alone are not finite; a warning at the end of the epoch
    says how many, unless there is loss scaling, which makes some. The logs of each
    epoch have the number of all skipped updates as `"skipped_batches"`; `patience` of
    them in a row are an error. It waits for each step, which costs JAX and GPUs some
    speed. Put the callback before those that read the logs.

    Args:
        action: `"stop"` or `"skip"`.
        data: the `ParallelDataset` whose `dataset` is given to `fit`, to save the
            batch; `None` = it is not saved.
        folder: path of the folder to save it in, created if necessary.
        patience: int >= 1, skipped updates in a row after which `"skip"` stops, too.

    Raises:
        ValueError: if `action` is something else or `patience` is below 1; from `fit`,
            if the optimizer cannot skip.
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

    checkpointed_attributes = ("skipped_batches", "_in_a_row", "_unseen")

    def __init__(
        self,
        action: str = "stop",
        data: Any = None,
        folder: str | os.PathLike = ".",
        patience: int = 100,
    ):
        super().__init__()
        check_ints(1, patience=patience)
        if action not in ("stop", "skip"):
            raise ValueError(
                f"`action` must be 'stop' or 'skip'; received `action={action!r}`."
            )
        self.action = action
        self.data = data
        self.folder = pathlib.Path(folder)
        self.patience = patience
        # Where Keras can, it then reads the logs in other threads, while `fit` goes on.
        self.async_safe = action == "stop"
        self._lock = threading.Lock()

    def on_train_begin(self, logs: Any = None) -> None:
        self.skipped_batches = self._in_a_row = 0
        self._steps_at_once = self.model.steps_per_execution
        optimizer = self.model.optimizer
        skipping = SkipNonFinite, keras.optimizers.LossScaleOptimizer
        self._is_guarded = isinstance(optimizer, skipping)
        if self.action == "skip" and not isinstance(optimizer, SkipNonFinite):
            raise ValueError(
                "`action='skip'` needs an optimizer that can leave an update out; "
                f"received the optimizer {type(optimizer).__name__}. Compile with "
                "`SkipNonFinite(optimizer)`, around any `LossScaleOptimizer`."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._last_finite, self._first_other = -1, math.inf
        self._batches = self._unseen = 0  # `_unseen` were skipped with a finite loss.

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.action == "stop":
            self._stop_if_found()
        elif batch == 0:
            self._metrics, self._updates = self._copy_metrics(), self._count_updates()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # This loss is the mean so far: once it is NaN, it stays so.
        with self._lock:
            if math.isfinite(logs.get("loss", 0.0)):
                self._last_finite = max(self._last_finite, batch)
            else:
                self._first_other = min(self._first_other, batch)
        if self.action == "skip":
            self._count_skipped(batch)
            self._skip_if_found(logs)
            if self._in_a_row >= self.patience:
                raise FloatingPointError(self._report_in_a_row())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.action == "stop":
            self._stop_if_found()
        else:
            self._warn_of_unseen()
            logs["skipped_batches"] = self.skipped_batches
            self.skipped_batches = 0

    def _stop_if_found(self) -> None:
        # The logs of the batches just before it may still be on their way.
        if self._first_other - self._last_finite <= self._steps_at_once:
            raise FloatingPointError(
                f"{self._report()} Lower the learning rate, clip gradients, or leave "
                "such batches out with `action='skip'`."
            )

    def _skip_if_found(self, logs: dict[str, Any]) -> None:
        if self._first_other == math.inf:
            self._metrics = self._copy_metrics()
            return
        warnings.warn(f"{self._report()} It is left out.", stacklevel=2)
        self._restore_metrics()
        for name, value in self.model.get_metrics_result().items():
            logs[name] = float(value)
        self._last_finite, self._first_other = int(self._first_other), math.inf

    def _count_skipped(self, batch: int) -> None:
        # The last of several steps at once may lie beyond the end of the data.
        batches = int(min(batch + 1, self.params["steps"] or math.inf))
        updates = self._count_updates()
        made, due = updates - self._updates, batches - self._batches
        self._batches, self._updates = batches, updates
        if self._steps_at_once > 1 and not self.params["steps"]:
            due = made + (self._first_other < math.inf)  # Perhaps the data ended.
        skipped = max(0, due - made)
        self.skipped_batches += skipped
        if made and self._steps_at_once > 1:
            self._in_a_row = 0  # Nobody knows which they were.
        else:
            self._in_a_row = skipped + (0 if made else self._in_a_row)
        if self._first_other == math.inf:
            self._unseen += skipped

    def _count_updates(self) -> int:
        # `iterations` counts several as one with gradient accumulation.
        optimizer = self.model.optimizer.inner_optimizer
        return int(ops.convert_to_numpy(count_steps(optimizer)))

    def _warn_of_unseen(self) -> None:
        if self._unseen and not self.model.optimizer.is_scaling:
            warnings.warn(
                f"In epoch {self._epoch + 1}, {self._unseen} of {self._trained()} "
                "batches made no update: their gradients were NaN or infinite, though "
                "their loss was not.",
                stacklevel=2,
            )

    def _trained(self) -> int:
        """Counts the batches of the epoch so far, before a resume as well."""
        return self._batches + self.params.get("first_batch", 0)

    def _report_in_a_row(self) -> str:
        return (
            f"{self._in_a_row} batches in a row, up to batch {self._trained()} of "
            f"epoch {self._epoch + 1}, made no update: their loss or gradients were "
            "NaN or infinite. Lower the learning rate, clip gradients, look for a "
            "division by zero, or give a greater `patience`."
        )

    def _copy_metrics(self) -> list[Any]:
        return [ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def _restore_metrics(self) -> None:
        variables = self.model.metrics_variables
        if len(variables) > len(self._metrics):  # created in this first step
            self.model.reset_metrics()
        else:
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(value)

    def _report(self) -> str:
        """Describes where it was; saves the batch, or those of one execution."""
        begun = self.params.get("first_batch", 0)
        first, last = self._last_finite + 1 + begun, int(self._first_other) + begun
        batches = f"batch {last + 1}"
        if first < last:
            batches = f"one of the batches {first + 1} to {last + 1}"
        where = f"The loss is NaN or infinite in epoch {self._epoch + 1}, {batches}"
        if not self._is_guarded and (first or self._epoch):
            where += ", by itself or by the gradients of the one before"
            first = max(0, first - 1)
        if self.data is None:
            return f"{where}."
        path = self.folder / f"non-finite-{self._epoch + 1:04}-{last + 1:06}.json"
        try:
            self._save_batches(path, range(first, last + 1))
        except OSError as error:
            return f"{where}, which could not be saved ({error})."
        return f"{where}, saved in {path}."

    def _save_batches(self, path: pathlib.Path, numbers: range) -> None:
        content = []
        for number in numbers:
            state = self.data.state(number)
            arrays = keras.tree.map_structure(np.asarray, self.data.batch(state))
            content.append(
                {
                    "position": state,
                    "lines": self.data.lines(state),
                    "batch": keras.tree.map_structure(np.ndarray.tolist, arrays),
                }
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
