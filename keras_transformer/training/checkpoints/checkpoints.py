"""Callback that saves a training run and resumes it."""

import contextlib
import math
import os
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import keras

from keras_transformer.backend import random_state
from keras_transformer.backend.keras_internals import set_initial_epoch
from keras_transformer.backend.processes import (
    count_processes,
    fail_together,
    greatest,
    is_first_process,
)
from keras_transformer.training.checkpoints import callback_state, run_state, storage
from keras_transformer.training.checkpoints.best_epoch import BestEpoch, Mode
from keras_transformer.training.checkpoints.run_files import RunFiles
from keras_transformer.training.checkpoints.run_state import RunState, SavedHistory
from keras_transformer.training.checkpoints.stop_signals import StopSignals
from keras_transformer.training.training_data import (
    DataCallback,
    DataState,
    TrainingData,
    check_data,
    check_steps,
    check_total_steps,
    data_identity,
)
from keras_transformer.types import Logs
from keras_transformer_runtime.arguments import check_ints, check_positive
from keras_transformer_runtime.runs.run_position import RunPosition

# A value of `stop_training`, which callbacks set to `True`: the resumed or shorter
# epoch is complete, and the run continues. Keras ends the epoch if the value is true.
_EPOCH_IS_COMPLETE = "The epoch is complete."
# Number of batches after which several processes decide together, since they have to
# wait for one another.
_BATCHES_BETWEEN_DECISIONS = 16


class Checkpoints(DataCallback):
    """Saves a training run. The same command resumes a run that was stopped.

    Pass it to `fit` as the last of the callbacks. It writes a checkpoint at the end of
    each epoch and, with `data`, within epochs, every five minutes. If `folder` has
    checkpoints, `fit` resumes from the newest, and every loss equals that of a run that
    was not stopped. If the run has completed all epochs, or `EarlyStopping` has ended
    it, `fit` prints a message and returns.

    The models of this library give the callback the other callbacks of their `fit`,
    and handle signals while it runs. With `data`, Ctrl-C (SIGINT) and SIGTERM discard
    no batch: `fit` completes the current one, writes a checkpoint and raises
    `KeyboardInterrupt` or, after SIGTERM, `SystemExit` with exit code 143. During
    validation, it stops at once, and the resumed run begins with the last batch of the
    epoch. Without `data`, it stops at once within an epoch, and at its end after the
    last batch. A second Ctrl-C stops at once. If the program has a handler for the
    signal, `fit` calls it after the checkpoint is written. Outside the main thread,
    signals are not handled.

    Other Keras models require `callbacks`, and signals have the effect that they have
    without the callback: Ctrl-C raises `KeyboardInterrupt` at once, and SIGTERM ends
    the process. The run then resumes from the newest checkpoint.

    A checkpoint has the complete state of the run: weights, the state of random
    generators, the optimizer with its moving averages and its loss scale, metrics, the
    position in the data, the history, and the state of the callbacks `EarlyStopping`,
    `ModelCheckpoint`, `ReduceLROnPlateau`, `SwapEMAWeights` and `TensorBoard`. Other
    callbacks list the attributes to save in a class attribute
    `checkpointed_attributes`: numbers, strings, arrays, and lists and dictionaries of
    them, with strings as keys.

    With LoRA (`enable_lora`), a checkpoint has the checksums of the frozen weights in
    place of their values, so it has the size of the trained part: the program that
    resumes loads the same model and calls `enable_lora` as before.

    Files are written atomically. If writing fails, for example because the disk is
    full, a warning is issued, training continues and the next checkpoint is written as
    usual. A damaged file is skipped with a warning, and the checkpoint before it is
    used. Weights that are not finite are not saved, nor is the end of an epoch that
    another callback has cut short.

    File names count epochs and batches from 1: `epoch-0003.npz` is the end of epoch 3,
    `epoch-0003-after-batch-000020.npz` comes after batch 20 of epoch 3.

    Everything that is not saved must be the same in the resumed run. A warning says
    whether the texts or the order of `data` differ, or the backend. A constant
    learning rate is saved; a schedule is not. Validation data from `parallel_dataset`
    require `shuffle=False` and no `window`. Otherwise their batches differ after a
    resume, and so does `val_loss`.

    Args:
        folder: str or path, a folder for the checkpoints of this run only. It is
            created if it does not exist. A second process that trains in the same
            folder gets an error (except on Windows). Processes that train together
            (see `distribute`) share the folder: the first one writes, all read.
        data: the `ParallelDataset` whose `dataset` is passed to `fit`, or `None`. With
            it, every epoch has the batches of its number, and a run can resume within
            an epoch. Without it, a run resumes at the beginning of an epoch, and is
            exact only if the data yield the same batches in a new process.
        save_every: int >= 1, batches between checkpoints within an epoch. Requires
            `data`. `None` = only at the end of epochs.
        keep: int >= 1, number of checkpoints at the end of an epoch to keep, for
            `average_checkpoints`. The two newest checkpoints are kept as well.
        save_every_seconds: float > 0, seconds between checkpoints within an epoch. Has
            no effect without `data`. `None` = the time does not matter.
        monitor: str, name of a log such as `"val_loss"` or `"val_bleu"`. The weights of
            the epoch with its best value so far are in the file `best.npz`, which
            `load_checkpoint` loads. `None` = there is no such file.
        mode: `"min"` or `"max"`, whether the best value of `monitor` is the lowest or
            the greatest. `"auto"` = the lowest for names that end in `loss`,
            `perplexity`, `error` or `error_rate`, the greatest for `accuracy`, `bleu`,
            `chrf` or `exact_match`.
        callbacks: list of the other callbacks of `fit`, whose state the checkpoints
            hold; `[]` if there are none. Models of this library ignore it, since their
            `fit` knows its callbacks; other models require it.
        total_steps: int >= 1, number of updates after which the run ends, also within
            an epoch: that epoch is then shorter, and has its validation and its
            checkpoint. Requires `data`, and an argument `epochs` of `fit` that rounds
            the number of epochs up. `None` = all epochs are whole.

    Raises:
        ValueError: if an argument has an invalid value; from `fit`, if `folder` has
            checkpoints of another model or is in use by another process, if `data` do
            not match the data passed to `fit`, if `epochs` does not match
            `total_steps`, if `callbacks` are missing, if the callback is not the last,
            or if the state of a callback cannot be saved.
        OSError: from `fit`, if there are checkpoints and none can be read.
        KeyboardInterrupt: from `fit`, after SIGINT.
        SystemExit: from `fit`, after SIGTERM.

    Example:

    ```python
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=40,
        shuffle=False,
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=5),
            Checkpoints("runs/en-de", data=train, monitor="val_loss"),
        ],
    )
    ```

    A model of Keras:

    ```python
    classifier = keras.Sequential([keras.layers.Dense(3)])
    classifier.compile("adam", "mse")
    rows, others = keras.ops.ones((32, 5)), [keras.callbacks.EarlyStopping("loss")]
    classifier.fit(
        rows,
        rows[:, :3],
        shuffle=False,
        callbacks=[*others, Checkpoints("runs/classifier", callbacks=others)],
    )
    ```
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        data: TrainingData | None = None,
        save_every: int | None = None,
        keep: int = 10,
        save_every_seconds: float | None = 300.0,
        monitor: str | None = None,
        mode: Mode = "auto",
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        total_steps: int | None = None,
    ) -> None:
        super().__init__()
        check_ints(1, keep=keep)
        check_ints(1, optional=True, save_every=save_every, total_steps=total_steps)
        if save_every_seconds is not None:
            check_positive(save_every_seconds=save_every_seconds)
        check_data(data, save_every=save_every, total_steps=total_steps)
        self.folder = pathlib.Path(folder)
        self.data = data
        self.save_every = save_every
        self.save_every_seconds = save_every_seconds
        self.keep = keep
        self.monitor = monitor
        self.mode = mode
        self.total_steps = total_steps
        self._best_epoch()  # Raises an error if `monitor` or `mode` is invalid.
        self.callbacks = callback_state.check_callbacks(callbacks)
        self._callbacks_of_fit: list[keras.callbacks.Callback] | None = None
        self._signals = StopSignals(self._finish)

    def _best_epoch(self) -> BestEpoch | None:
        return None if self.monitor is None else BestEpoch(self.monitor, self.mode)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._callbacks = self._all_callbacks()
        callback_state.check_is_last(self, self._callbacks)
        self._fit_params = self.params
        self._steps_per_execution = self.model.steps_per_execution
        check_steps(self.data, self.params["steps"])
        if self.data is not None and self.total_steps is not None:
            check_total_steps(
                self.data,
                self.total_steps,
                epochs=self.params["epochs"],
                steps_per_execution=self._steps_per_execution,
            )
        callback_state.check_can_be_saved(self._callbacks)
        self._frozen = run_state.frozen_checksums(self.model)
        newest = self._open_folder()
        self._learning_rates = run_state.learning_rates(self.model.optimizer)
        self._resumed: RunState | None = None
        try:
            self._check_same_position(newest)
            self._seed = random_state.initial_seed()
            if newest is not None:
                self._resume(*newest)
        except BaseException:
            storage.release_lock(self.folder)
            raise
        self._unsaved: tuple[RunPosition, RunState] | None = None
        self._signals = StopSignals(self._finish, bool(self.params["verbose"]))
        # Processes that train together must save and stop at the same batch.
        self._is_alone = count_processes() == 1
        if not self._is_alone:
            self._signals.waits_for = "batch"
        if self._callbacks_of_fit is not None:  # `within_fit` restores the handlers.
            self._signals.install()

    def _all_callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks of `fit`, as far as they are known."""
        if self.model is None:
            raise ValueError(
                "`Checkpoints` must be one of the `callbacks` given to `fit`; received "
                "a call from elsewhere. Pass it to `fit`."
            )
        if self._callbacks_of_fit is not None:
            return self._callbacks_of_fit
        if self.callbacks is None:
            raise ValueError(
                "`callbacks` must be the other callbacks of `fit` for a model of "
                f"class {type(self.model).__name__}; received `callbacks=None`. Pass "
                "the same list to `Checkpoints`, or `callbacks=[]` if there are none."
            )
        return [*self.callbacks, self]

    @fail_together
    def _open_folder(self) -> tuple[pathlib.Path, RunState] | None:
        """Locks the folder and reads the newest checkpoint."""
        is_first = is_first_process()
        if is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
            storage.acquire_lock(self.folder)
            storage.remove_unfinished(self.folder)
        self._files = RunFiles(self.folder, self.keep, self._best_epoch(), is_first)
        try:
            return self._files.newest()
        except BaseException:
            storage.release_lock(self.folder)
            raise

    def _check_same_position(
        self, newest: tuple[pathlib.Path, RunState] | None
    ) -> None:
        """Checks that all processes have read the same checkpoint."""
        state = {"epoch": 0, "batch": 0} if newest is None else newest[1]
        position = [state["epoch"], state["batch"]]
        found = greatest([*position, *(-number for number in position)])
        if found != [*position, *(-number for number in position)]:
            raise ValueError(
                "`folder` must be on a file system that all processes share; received "
                f"`folder={str(self.folder)!r}`, where they find different checkpoints."
            )

    def _resume(self, path: pathlib.Path, state: RunState) -> None:
        if state["batch"] and self.data is None:
            raise ValueError(
                "`data` must be given to resume within an epoch; received `data=None`, "
                f"and {path} is not at the end of an epoch."
            )
        _warn_of_changes(state, data_identity(self.data), path)
        model, epochs = self.model, self.params["epochs"]
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        is_new = not int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        self._restore(state, path)
        if state["backend"] == keras.backend.backend():
            self._seed = state["seed"]
        self._check_learning_rates(state, path, is_new)
        early = callback_state.stopped_early(self._callbacks)
        self._first_epoch = epochs if early else min(epochs, state["epoch"])
        set_initial_epoch(model, self._first_epoch)
        is_complete = self._first_epoch == epochs
        if is_complete and not early:
            callback_state.finalize_averages(self._callbacks)
        self._resumed = state
        if self.params["verbose"]:
            position = RunPosition(state["epoch"], state["batch"])
            resuming = f"Resuming at {position.resumes_at}."
            status = "The run is complete." if is_complete else resuming
            print(f"{status} Checkpoint: {path}")

    def _restore(self, state: RunState, path: pathlib.Path) -> None:
        variables = self.model.optimizer.variables
        run_state.restore_variables(self.model.variables, state["model"], path)
        run_state.restore_variables(variables, state["optimizer"], path)
        callback_state.restore_callbacks(self._callbacks, state["callbacks"])

    def _check_learning_rates(
        self, state: RunState, path: pathlib.Path, is_new: bool
    ) -> None:
        """Warns if the learning rate passed to `compile` is ignored."""
        scheduler = keras.callbacks.LearningRateScheduler
        is_scheduled = any(isinstance(c, scheduler) for c in self._callbacks)
        compiled = self._learning_rates
        restored = run_state.learning_rates(self.model.optimizer)
        self._learning_rates = state["learning_rates"]
        is_used = is_scheduled or compiled in (self._learning_rates, restored)
        if is_new and not is_used:
            warnings.warn(
                f"`learning_rate={_format_rates(compiled)}` is ignored: the run "
                f"continues with {_format_rates(restored)} from {path}. To change the "
                "rate, use a `keras.callbacks.LearningRateScheduler`.",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        set_initial_epoch(self.model, None)  # The next `fit` starts at its own epoch.
        if self._resumed is not None and epoch != self._first_epoch:
            raise ValueError(
                "`initial_epoch` must be that of the checkpoint to resume; received "
                f"`initial_epoch={epoch}`. Call `fit` with "
                f"`initial_epoch={self._first_epoch}`."
            )
        self._epoch, self._first_batch, self._is_last_batch = epoch, 0, False
        self._next_epoch: DataState | None = None
        self._random_state: random_state.RandomState | None = None
        self._set_params(**self._steps_of_epoch())
        state, self._resumed = self._resumed, None
        if self.data is not None:
            if state is None or state["data"] is None:
                self.data.start_epoch(epoch)
            else:
                self.data.restore(state["data"])
        if state is not None:
            self._restore_after_reset(state)
        self._last_saved = self._first_batch

    def _restore_after_reset(self, state: RunState) -> None:
        """Restores the state that Keras resets when a run or an epoch begins."""
        vars(self.model.history).update(state["history"])
        random_state.restore_random_state(state["random"])
        if state["batch"]:
            self._resume_within_epoch(state)

    def _resume_within_epoch(self, state: RunState) -> None:
        """Restores the state within an epoch, which Keras begins at its first batch."""
        assert self.data is not None
        # The callbacks have begun the epoch again, `LearningRateScheduler` among them.
        self._restore(state, self.folder)
        self._restore_metrics(state)
        self._first_batch, self._random_state = state["batch"], state["random"]
        changes = {"steps": self.data.batches_per_epoch, **self._steps_of_epoch()}
        changes["steps"] -= self._first_batch
        self._set_params(**changes, first_batch=self._first_batch)

    def _restore_metrics(self, state: RunState) -> None:
        assert self.data is not None and state["data"] is not None
        if len(self.model.metrics_variables) < len(state["metrics"]):
            run_state.build_metrics(self.model, self.data.batch(state["data"]))
        metrics = self.model.metrics_variables
        try:
            run_state.restore_variables(metrics, state["metrics"], self.folder)
        except ValueError:
            self.model.reset_metrics()
            warnings.warn(
                "`metrics` differ from those of the run so far. Training continues: "
                f"in epoch {state['epoch'] + 1} they start at batch "
                f"{state['batch'] + 1}.",
                stacklevel=2,
            )

    def _steps_of_epoch(self) -> dict[str, int]:
        """Returns the parameters of the callbacks in a run of `total_steps`."""
        if self.data is None or self.total_steps is None:
            return {}
        whole = self.data.batches_per_epoch
        return {
            "steps": min(whole, self.total_steps - self._epoch * whole),
            "batches_per_epoch": whole,
            "total_steps": self.total_steps,
        }

    def _set_params(self, **changes: int) -> None:
        """Sets the parameters of the callbacks."""
        # `SwapEMAWeights` gets an infinite number of epochs, as it overwrites the
        # weights with their averages in the last one. A longer run could not continue
        # from them. `finalize_averages` does so after the last checkpoint.
        for callback in self._callbacks:
            callback.set_params({**self._fit_params, **changes})
        for swap in callback_state.swap_callbacks(self._callbacks):
            swap.set_params({**swap.params, "epochs": math.inf})

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        # At the end of a batch, JAX would have to wait for the result of each step.
        steps = self.params["steps"] or math.inf
        self._is_last_batch = batch + self._steps_per_execution >= steps
        if self._is_last_batch:
            self._prepare_end_of_epoch()
        if batch == 0:
            # Creating the iterator may have used the random generators.
            if self._random_state:
                random_state.restore_random_state(self._random_state)
            else:
                random_state.seed_epoch(self._seed, self._epoch)
        self._save_or_stop(self._first_batch + batch)

    def _save_or_stop(self, batches: int) -> None:
        """Saves after a number of batches of the epoch, and stops after a signal."""
        signals = self._signals
        is_stopping, is_late = self._decide(batches)
        if self.data is not None:
            new = batches - self._last_saved
            is_due = self.save_every is not None and new >= self.save_every
            if new > 0 and (is_stopping or is_late or is_due):
                self._files.write(*self._state_within_epoch(self.data, batches))
                self._last_saved = batches
            elif self._is_last_batch and new > 0:
                # Validation may take long. A run that is stopped then resumes at this
                # batch, as Keras cannot resume after the last one.
                position, state = self._state_within_epoch(self.data, batches)
                self._unsaved = position, cast(RunState, storage.copied(state))
        if is_stopping:
            signals.waits_for = None
            signals.stop_if_received()
        signals.waits_for = "epoch" if self._is_last_batch else "batch"

    def _decide(self, batches: int) -> tuple[bool, bool]:
        """Returns whether to stop, and whether the time has come for a checkpoint."""
        received = self._signals.received or 0
        is_late = (
            self.save_every_seconds is not None
            and self._files.seconds_since_write() >= self.save_every_seconds
        )
        if not self._is_alone:
            if batches % _BATCHES_BETWEEN_DECISIONS:
                return False, False
            received, late = greatest([received, is_late])
            self._signals.received, is_late = received or None, bool(late)
        return bool(received), is_late

    def _state_within_epoch(
        self, data: TrainingData, batches: int
    ) -> tuple[RunPosition, RunState]:
        position = RunPosition(self._epoch, batches)
        history = run_state.save_history(self.model)
        return position, self._state(position, data.state(batches), history)

    def _prepare_end_of_epoch(self) -> None:
        if self.data is not None:
            self._next_epoch = self.data.state(self.data.batches_per_epoch)
        whole = self.params.get("batches_per_epoch", self.params["steps"])
        if self._first_batch or self.params["steps"] != whole:
            # Keras would continue for a whole epoch. On TensorFlow, a step without data
            # still changes random states and the number of iterations.
            self.model.stop_training = _EPOCH_IS_COMPLETE

    def on_test_begin(self, logs: Logs | None = None) -> None:
        if not self._is_alone:  # The others would wait.
            return
        self._signals.waits_for = "epoch" if self.data is None else None
        self._signals.stop_if_received()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._signals.waits_for, self._unsaved = "checkpoint", None
        if self.model.stop_training is _EPOCH_IS_COMPLETE:
            self.model.stop_training = False
        if not self._is_cut_short():
            position = RunPosition(epoch + 1)
            history = run_state.save_history(self.model, epoch, logs)
            state = self._state(position, self._next_epoch, history)
            state["logs"] = run_state.save_logs(logs)
            self._files.write(position, state)
        if epoch + 1 == self._fit_params["epochs"]:
            callback_state.finalize_averages(self._callbacks)
        is_stopping, _ = self._decide(batches=0)
        if self._is_alone or is_stopping:
            self._signals.waits_for = None
            self._signals.stop_if_received()

    def _is_cut_short(self) -> bool:
        """Returns whether the epoch has ended before its last batch."""
        # If the size of the data is unknown, only `EarlyStopping`, which waits for the
        # end of the epoch, is known not to cut it short.
        if self.params["steps"] is None:
            is_whole = callback_state.stopped_early(self._callbacks)
        else:
            is_whole = self._is_last_batch
        return self.model.stop_training and not is_whole

    def on_train_end(self, logs: Logs | None = None) -> None:
        storage.release_lock(self.folder)
        set_initial_epoch(self.model, None)
        if self._resumed is not None:  # The run was complete.
            vars(self.model.history).update(self._resumed["history"])

    def _finish(self) -> str:
        """Saves what is not saved; returns how to resume."""
        # A signal calls it at any time, even while a step runs on the variables of the
        # model.
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            self._files.write(*unsaved)
        return self._files.resume_message(self._fit_params["epochs"])

    def _state(
        self, position: RunPosition, data: DataState | None, history: SavedHistory
    ) -> RunState:
        model = self.model
        metrics: Sequence[keras.Variable] = (
            model.metrics_variables if position.batches else ()
        )
        return {
            "epoch": position.epochs,
            "batch": position.batches,
            "backend": keras.backend.backend(),
            "data_identity": data_identity(self.data),
            "learning_rates": self._learning_rates,
            "model": run_state.save_model(model, self._frozen),
            "optimizer": run_state.save_variables(model.optimizer.variables),
            "metrics": run_state.save_variables(metrics),
            "callbacks": callback_state.save_callbacks(self._callbacks),
            "random": random_state.save_random_state(),
            "seed": self._seed,
            "data": data,
            "history": history,
        }


@contextlib.contextmanager
def within_fit(callbacks: object) -> Iterator[None]:
    """Gives the callbacks of `fit` to each `Checkpoints` among them.

    `fit` must run within the context. Its end restores the handlers of signals and
    releases the locks of the folders, also after an exception.
    """
    given = getattr(callbacks, "callbacks", callbacks)
    known = [] if given is None else keras.tree.flatten(given)
    own = [each for each in known if isinstance(each, Checkpoints)]
    for each in own:
        each._callbacks_of_fit = known
    try:
        yield
    finally:
        for each in reversed(own):
            each._callbacks_of_fit = None
            each._signals.restore()
            storage.release_lock(each.folder)


def _warn_of_changes(
    state: RunState, data: dict[str, int] | None, path: pathlib.Path
) -> None:
    """Warns if a resumed run has other data or another backend than before."""
    before = state["data_identity"] or {}
    changed = [n for n, number in before.items() if (data or before).get(n) != number]
    if changed:
        warnings.warn(
            "`data` differ from the data of the run so far in "
            f"{', '.join(map(repr, changed))}. Training continues with them. Received "
            f"{_format_identity(data)}; {path} has {_format_identity(before)}. To "
            "continue the run as it began, pass its texts and arguments.",
            stacklevel=2,
        )
    if state["backend"] != keras.backend.backend():
        warnings.warn(
            f"The run so far used the backend {state['backend']!r}, and continues with "
            f"{keras.backend.backend()!r}. Its losses differ slightly from those of a "
            "run on one backend: dropout draws other numbers.",
            stacklevel=2,
        )


def _format_identity(data: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name} {number}" for name, number in (data or {}).items())


def _format_rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
