"""The callback that saves a training run and resumes it."""

import math
import os
import pathlib
import warnings
from typing import Any

import keras

from keras_transformer.arguments import check_ints
from keras_transformer.backend.keras_internals import (
    finalize_averages,
    set_initial_epoch,
)
from keras_transformer.training.checkpoints import run_state, storage
from keras_transformer.training.checkpoints.arguments import (
    check_can_be_saved,
    check_data,
    check_last,
    check_steps,
    list_of,
)
from keras_transformer.training.checkpoints.storage import Position

# Keras leaves its loop if `stop_training` is truthy; callbacks set it to True.
_REST_IS_DONE = "The rest of the resumed epoch is done."


class Checkpoints(keras.callbacks.Callback):
    """Saves a training run; the same command resumes it, whatever stopped it.

    Give it to `fit` as the last of the callbacks. It writes a checkpoint at the end
    of each epoch and, if asked to, every `save_every` batches. When `folder` holds
    checkpoints already, `fit` starts from the newest, and every loss equals that of
    a run that was never stopped. A run that has completed all its epochs, or that
    `EarlyStopping` has ended, does nothing more and says so.

    A checkpoint holds everything that a run consists of: weights, the states of random
    generators, the optimizer with its averages and its loss scale, metrics, the
    position in the data, the history, and what `EarlyStopping`, `ModelCheckpoint`,
    `ReduceLROnPlateau`, `SwapEMAWeights` and `TensorBoard` remember. Other callbacks
    name the attributes to keep in a class attribute `checkpointed_attributes`: numbers,
    strings, arrays, and lists and dictionaries of them, whose keys are strings.

    A file is written whole or not at all. If that fails, because the disk is full,
    say, there is a warning, training goes on and the next checkpoint is tried. A
    damaged file is skipped in favour of the one before it, with a warning. Weights
    that are not finite are never saved, nor is the end of an epoch that was cut short.

    What is not saved must be the same in the resumed run. The learning rate that
    `compile` was given is saved, a schedule is not. Validation data of a
    `parallel_dataset` need `shuffle=False` and no `window`, or their batches begin
    anew and give another `val_loss`.

    Args:
        folder: path of a folder for the checkpoints of this run and no other, created
            if necessary. Another process that trains there is refused, except on
            Windows: workers that train together need one each.
        data: the `ParallelDataset` whose `dataset` is given to `fit`. With it, each
            epoch has the batches of its number, and a run can resume in the middle of
            an epoch. With `None`, a run resumes at the start of an epoch only, and is
            an exact continuation only if the data give the same batches in a new
            process.
        save_every: int >= 1, batches between checkpoints within an epoch; needs
            `data`. `None` = at the ends of epochs only.
        keep: int >= 1, how many ends of epochs to keep for `average_checkpoints`. The
            two newest checkpoints of any kind are kept as well.

    Raises:
        ValueError: if an argument has a bad value; from `fit`, if `folder` has
            checkpoints of another model or process, `data` are not those given to
            `fit`, it is not the last of the callbacks, or one of them remembers what
            cannot be saved.
        OSError: from `fit`, if there are checkpoints and none can be read.

    Example:

    ```python
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=40,
        shuffle=False,
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=5),
            Checkpoints("runs/en-de", data=train, save_every=500),
        ],
    )
    ```
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        data: Any = None,
        save_every: int | None = None,
        keep: int = 10,
    ):
        super().__init__()
        check_ints(1, keep=keep)
        check_ints(1, optional=True, save_every=save_every)
        check_data(data, save_every)
        self.folder = pathlib.Path(folder)
        self.data = data
        self.save_every = save_every
        self.keep = keep

    def on_train_begin(self, logs: Any = None) -> None:
        self._list = check_last(list_of(self), self)
        self._fit_params = self.params
        self._steps_at_once = self.model.steps_per_execution
        check_steps(self.data, self.params["steps"])
        check_can_be_saved(self._list.callbacks)
        self.folder.mkdir(parents=True, exist_ok=True)
        storage.claim(self.folder)
        try:
            self._begin()
        except BaseException:
            storage.release(self.folder)
            raise

    def _begin(self) -> None:
        storage.remove_unfinished(self.folder)
        self._learning_rates = run_state.learning_rates(self.model.optimizer)
        self._resumed: dict[str, Any] | None = None
        if newest := self._newest_checkpoint():
            self._resume(*newest)

    def _newest_checkpoint(self) -> tuple[pathlib.Path, dict[str, Any]] | None:
        paths = [*storage.checkpoint_files(self.folder).values()]
        newest = next(storage.readable_checkpoints(reversed(paths)), None)
        if paths and newest is None:
            raise OSError(
                "`folder` must have a checkpoint that can be read; received "
                f"`folder={str(self.folder)!r}`, where all {len(paths)} are damaged. "
                "Move them away to start from the beginning."
            )
        return newest

    def _resume(self, path: pathlib.Path, state: dict[str, Any]) -> None:
        if state["batch"] and self.data is None:
            raise ValueError(
                f"`data` must be given to resume from {path}, which is in the middle "
                "of an epoch; "
                "received `data=None`."
            )
        if state["data_size"] not in (None, _size(self.data)):
            warnings.warn(
                "`data` are not those of the run so far, which goes on with them all "
                f"the same; received {_size(self.data)} where {path} has "
                f"{state['data_size']}.",
                stacklevel=2,
            )
        model, epochs = self.model, self.params["epochs"]
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        is_new = not int(model.optimizer.iterations)
        self._restore(state, path)
        self._check_learning_rates(state, path, is_new)
        early = run_state.stopped_early(self._list.callbacks)
        self._first_epoch = epochs if early else min(epochs, state["epoch"])
        set_initial_epoch(model, self._first_epoch)
        over = self._first_epoch == epochs
        if over and not early:
            self._finalize_averages()
        self._resumed = state
        if self.params["verbose"]:
            at = f"epoch {state['epoch'] + 1}, batch {state['batch'] + 1}"
            what = "The run is complete" if over else f"Resuming at {at}"
            print(f"{what}: {path}")

    def _restore(self, state: dict[str, Any], path: pathlib.Path) -> None:
        variables = self.model.optimizer.variables
        run_state.restore_variables(self.model.variables, state["model"], path)
        run_state.restore_variables(variables, state["optimizer"], path)
        run_state.restore_callbacks(self._list.callbacks, state["callbacks"])

    def _check_learning_rates(
        self, state: dict[str, Any], path: pathlib.Path, is_new: bool
    ) -> None:
        """Points out one that `compile` was given in vain."""
        scheduler = keras.callbacks.LearningRateScheduler
        is_scheduled = any(isinstance(c, scheduler) for c in self._list.callbacks)
        given = self._learning_rates
        now = run_state.learning_rates(self.model.optimizer)
        self._learning_rates = state.get("learning_rates", given)
        is_used = is_scheduled or given in (self._learning_rates, now)
        if is_new and not is_used:
            warnings.warn(
                "`learning_rate` is not that of the run so far, which goes on with its "
                f"own; received {_listed(given)} where {path} has {_listed(now)}. A "
                "`keras.callbacks.LearningRateScheduler` changes it from an epoch on.",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        set_initial_epoch(self.model, None)  # or the next `fit` would begin there too
        if self._resumed is not None and epoch != self._first_epoch:
            raise ValueError(
                "`initial_epoch` must be that of the checkpoint to resume; received "
                f"`initial_epoch={epoch}`. Call `fit` with "
                f"`initial_epoch={self._first_epoch}`."
            )
        self._epoch, self._first_batch, self._is_last_batch = epoch, 0, False
        self._next_epoch = self._random_state = None
        self._set_params()
        state, self._resumed = self._resumed, None
        if self.data is not None:
            self._go_to(state and state["data"])
        if state is not None:
            self._take_up(state)
        self._last_saved = self._first_batch

    def _go_to(self, position: Any) -> None:
        if position is None:
            self.data.start_epoch(self._epoch)
        else:
            self.data.restore(position)

    def _take_up(self, state: dict[str, Any]) -> None:
        """Restores what Keras resets at the start of a run and of an epoch."""
        vars(self.model.history).update(state["history"])
        run_state.restore_random_state(state["random"])
        if state["batch"]:
            self._enter_epoch(state)

    def _enter_epoch(self, state: dict[str, Any]) -> None:
        """Goes to the middle of an epoch, a notion that Keras does not have."""
        # Callbacks have begun the epoch: `LearningRateScheduler` for a second time.
        self._restore(state, self.folder)
        self._restore_metrics(state)
        self._first_batch, self._random_state = state["batch"], state["random"]
        left = self.data.batches_per_epoch - self._first_batch
        self._set_params(steps=left, first_batch=self._first_batch)

    def _restore_metrics(self, state: dict[str, Any]) -> None:
        if len(self.model.metrics_variables) < len(state["metrics"]):
            run_state.build_metrics(self.model, self.data.batch(state["data"]))
        metrics = self.model.metrics_variables
        try:
            run_state.restore_variables(metrics, state["metrics"], self.folder)
        except ValueError:
            self.model.reset_metrics()
            warnings.warn(
                "`metrics` are not those of the run so far, which goes on all the "
                f"same: in epoch {state['epoch'] + 1} they count from batch "
                f"{state['batch'] + 1} on.",
                stacklevel=2,
            )

    def _set_params(self, **rest: Any) -> None:
        """Tells all callbacks of the epoch, but those that swap not of the last one.

        They would overwrite what a longer run goes on from; see `_finalize_averages`.
        """
        self._list.set_params({**self._fit_params, **rest})
        for swap in run_state.swapping(self._list.callbacks):
            swap.set_params({**swap.params, "epochs": math.inf})

    def _finalize_averages(self) -> None:
        """Lets `fit` end with the averages in the model, as Keras would have it."""
        for swap in run_state.swapping(self._list.callbacks):
            finalize_averages(swap)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not at the end of a batch, which would make JAX wait for the result of each.
        steps = self.params["steps"] or math.inf
        self._is_last_batch = batch + self._steps_at_once >= steps
        if self._is_last_batch:
            self._prepare_the_end()
        if batch == 0 and self._random_state:  # Making the iterator may have drawn.
            run_state.restore_random_state(self._random_state)
        done = self._first_batch + batch
        if self.save_every and done - self._last_saved >= self.save_every:
            self._last_saved = done
            history = run_state.save_history(self.model)
            self._save(Position(self._epoch, done), self.data.state(done), history)

    def _prepare_the_end(self) -> None:
        if self.data is not None:
            self._next_epoch = self.data.state(self.data.batches_per_epoch)
        if self._first_batch:
            # Keras would go on for a whole epoch. On TensorFlow a step without data
            # moves random states and the optimizer's counter all the same.
            self.model.stop_training = _REST_IS_DONE

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.stop_training is _REST_IS_DONE:
            self.model.stop_training = False
        if not self._is_cut_short():
            history = run_state.save_history(self.model, epoch, logs or {})
            self._save(Position(epoch + 1), self._next_epoch, history)
        if epoch + 1 == self._fit_params["epochs"]:
            self._finalize_averages()

    def _is_cut_short(self) -> bool:
        """Tells whether the epoch was ended before its last batch.

        Of data of unknown size that is not known: `EarlyStopping` waits for the end.
        """
        if self.params["steps"] is None:
            is_over = run_state.stopped_early(self._list.callbacks)
        else:
            is_over = self._is_last_batch
        return self.model.stop_training and not is_over

    def on_train_end(self, logs: Any = None) -> None:
        storage.release(self.folder)
        set_initial_epoch(self.model, None)
        if self._resumed is not None:  # There was nothing left to do.
            vars(self.model.history).update(self._resumed["history"])

    def _save(self, position: Position, data: Any, history: dict[str, Any]) -> None:
        path = self.folder / position.file_name
        state = {**self._state(position), "data": data, "history": history}
        if not run_state.all_finite(state["model"]):
            warnings.warn(
                f"Not saved, as weights are NaN or infinite: {path}", stacklevel=2
            )
            return
        try:
            storage.write_checkpoint(path, state)
            storage.remove_superseded(self.folder, position, self.keep)
        except OSError as error:
            warnings.warn(f"Not saved, training goes on: {path}: {error}", stacklevel=2)

    def _state(self, position: Position) -> dict[str, Any]:
        model = self.model
        metrics = model.metrics_variables if position.batch else []
        return {
            **position._asdict(),
            "data_size": _size(self.data),
            "learning_rates": self._learning_rates,
            "model": run_state.save_variables(model.variables),
            "optimizer": run_state.save_variables(model.optimizer.variables),
            "metrics": run_state.save_variables(metrics),
            "callbacks": run_state.save_callbacks(self._list.callbacks),
            "random": run_state.save_random_state(),
        }


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _size(data: Any) -> dict[str, int] | None:
    """Returns the sizes by which datasets are told apart."""
    if data is None:
        return None
    names = "batches_per_epoch", "tokens_per_epoch"
    return {name: int(getattr(data, name)) for name in names}
