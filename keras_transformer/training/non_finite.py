"""What to do where the loss is NaN or infinite: stop and show why, or leave it out."""

import json
import math
import os
import pathlib
import threading
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.files import written_whole


class NonFiniteLoss(keras.callbacks.Callback):
    """Stops at the first batch whose loss is NaN or infinite, or leaves it out.

    The message names epoch and batch and, with `data`, a file that has the batch: its
    position in the data, its texts and its token ids.

    `"stop"` raises an error. Nothing is saved of the run any more; what `Checkpoints`
    has saved is from before.

    `"skip"` warns and goes on: the batch makes no update and does not count in the
    metrics. The optimizer has to be `SkipNonFinite`, which leaves the update out. The
    logs of each epoch have the number of such batches as `"skipped_batches"`. Each step
    is waited for, which costs JAX and GPUs some speed. Put the callback before those
    that read the logs.

    Args:
        action: `"stop"` or `"skip"`.
        data: the `ParallelDataset` whose `dataset` is given to `fit`; the batch is
            saved if it is given.
        folder: path of the folder to save it in, which is made if need be.

    Raises:
        ValueError: if `action` is something else, or the optimizer cannot skip.
        FloatingPointError: by `fit`, to stop.

    Example:

    ```python
    model.compile(
        optimizer=SkipNonFinite(keras.optimizers.Adam(1e-3)),
        loss=LabelSmoothedCrossEntropy(),
    )
    skip = NonFiniteLoss("skip", data=train, folder="runs/en-de")
    model.fit(train.dataset, epochs=40, callbacks=[skip])
    ```
    """

    checkpointed_attributes = ("skipped_batches",)

    def __init__(
        self,
        action: str = "stop",
        data: Any = None,
        folder: str | os.PathLike = ".",
    ):
        super().__init__()
        if action not in ("stop", "skip"):
            raise ValueError(
                f"`action` must be 'stop' or 'skip'; received `action={action!r}`."
            )
        self.action = action
        self.data = data
        self.folder = pathlib.Path(folder)
        # Where Keras can, it then reads the logs in other threads, and `fit` goes on.
        self.async_safe = action == "stop"
        self._lock = threading.Lock()

    def on_train_begin(self, logs: Any = None) -> None:
        self.skipped_batches = 0
        self._steps_at_once = self.model.steps_per_execution
        optimizer = self.model.optimizer
        if self.action == "skip" and not isinstance(optimizer, SkipNonFinite):
            raise ValueError(
                "`action='skip'` needs an optimizer that can leave an update out; "
                f"received the optimizer {type(optimizer).__name__}. Compile with "
                "`SkipNonFinite(optimizer)`, around any `LossScaleOptimizer`."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._last_finite, self._first_other = -1, math.inf

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.action == "stop":
            self._stop_if_found()
        elif batch == 0:
            self._metrics = self._copy_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # This loss is the mean so far: once it is NaN, it stays so.
        with self._lock:
            if math.isfinite(logs.get("loss", 0.0)):
                self._last_finite = max(self._last_finite, batch)
            else:
                self._first_other = min(self._first_other, batch)
        if self.action == "skip":
            self._skip_if_found(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.action == "stop":
            self._stop_if_found()
        else:
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
        self.skipped_batches += 1
        self._restore_metrics()
        for name, value in self.model.get_metrics_result().items():
            logs[name] = float(value)
        self._last_finite, self._first_other = int(self._first_other), math.inf

    def _copy_metrics(self) -> list[Any]:
        return [ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def _restore_metrics(self) -> None:
        variables = self.model.metrics_variables
        if len(variables) > len(self._metrics):  # made in this, the first, step
            self.model.reset_metrics()
        else:
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(value)

    def _report(self) -> str:
        """Says where it was; saves the batch, or those that `fit` took at once."""
        begun = self.params.get("first_batch", 0)
        first, last = self._last_finite + 1 + begun, int(self._first_other) + begun
        batches = f"batch {last + 1}"
        if first < last:
            batches = f"one of the batches {first + 1} to {last + 1}"
        where = f"The loss is NaN or infinite in epoch {self._epoch + 1}, {batches}"
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
        with written_whole(path) as file:
            text = json.dumps(content, ensure_ascii=False, indent=1)
            file.write(text.encode())


@keras.saving.register_keras_serializable("keras_transformer")
class SkipNonFinite(keras.optimizers.Optimizer):
    """An optimizer that makes no update where loss or gradients are not finite.

    Such a step leaves weights, averages, learning rate and number of iterations as
    they are. `keras.optimizers.LossScaleOptimizer`, which float16 needs, looks at the
    gradients alone: it has to be the inner one, and is by itself where a `Seq2Seq` of
    `mixed_float16` is compiled. It halves its scale at such a step, too.

    `NonFiniteLoss("skip")` counts the batches and keeps them out of the metrics.

    Args:
        inner_optimizer: the Keras optimizer that makes the updates.
        name: name of the optimizer.

    Example:

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile(SkipNonFinite(keras.optimizers.SGD()), loss="mse")
    >>> before = model.get_weights()
    >>> loss = model.train_on_batch(np.array([[np.nan]]), np.array([[1.0]]))
    >>> np.array_equal(model.get_weights()[0], before[0])
    True
    """

    def __init__(self, inner_optimizer: Any, name: str = "skip_non_finite"):
        super().__init__(learning_rate=0.0, name=name)
        self._optimizer = inner_optimizer

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that makes the updates, within any `LossScaleOptimizer`.

        Keras's callbacks take it off to find the moving averages.
        """
        scaling = self._optimizer
        return scaling.inner_optimizer if self._is_scaling() else scaling

    def scaling(self) -> "SkipNonFinite":
        """Makes one that scales the loss within; around it, Keras would not see it."""
        if self._is_scaling():
            return self
        scaling = keras.optimizers.LossScaleOptimizer(self._optimizer)
        return SkipNonFinite(scaling, self.name)

    def _is_scaling(self) -> bool:
        return isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer)

    def build(self, variables: list[Any]) -> None:
        self._optimizer.build(variables)
        super().build(variables)

    @property
    def variables(self) -> list[Any]:
        return self._optimizer.variables

    def scale_loss(self, loss: Any) -> Any:
        # All gradients become NaN where the loss is not finite.
        finite = ops.where(ops.isfinite(loss), 1.0, math.nan)
        return self._optimizer.scale_loss(loss) * ops.cast(finite, loss.dtype)

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        if not self.built:
            self.build(trainable_variables)
        if self._is_scaling():  # It leaves steps out itself, by what it sees.
            self._optimizer.apply(grads, trainable_variables)
            return
        ops.cond(
            _all_finite(grads),
            lambda: self._optimizer.apply(grads, trainable_variables),
            lambda: None,
        )

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        before = trainable_variables, optimizer_variables
        after = self._optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        if self._is_scaling():  # It leaves steps out itself, by what it sees.
            return after
        finite = _all_finite(grads)
        return keras.tree.map_structure(
            lambda new, old: ops.where(finite, new, old), after, before
        )

    @property
    def learning_rate(self) -> Any:
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self._optimizer.iterations

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        self._optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        inner = keras.saving.serialize_keras_object(self._optimizer)
        return {"inner_optimizer": inner, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects
        )
        return cls(**{**config, "inner_optimizer": inner})


def _all_finite(tensors: list[Any]) -> Any:
    finite = [ops.all(ops.isfinite(t)) for t in tensors if t is not None]
    return ops.all(ops.stack(finite))
