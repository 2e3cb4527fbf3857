import copy
import fcntl
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from small_run import (
    BATCHES,
    EPOCHS,
    LENGTH,
    LETTERS,
    ROWS,
    LossLog,
    compile_model,
    make_data,
    make_model,
    make_network,
)

from keras_transformer import (
    CharacterTokenizer,
    Checkpoints,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    NonFiniteLoss,
    Perplexity,
    TrainingProgress,
    parallel_dataset,
)
from keras_transformer.backend import random_state
from keras_transformer.training.checkpoints import run_state, storage
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files

LIMITS = {"max_source_length": 4, "max_target_length": 4}


class Stop(Exception):
    """Stops a run, like an interrupt."""


class StopAfter(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.at = [epoch, batch]

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if [self.epoch, batch] == self.at:
            raise Stop


def stateful():
    """Returns callbacks with state."""
    return [
        keras.callbacks.EarlyStopping("loss", patience=9, mode="max"),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    ]


def make_ema_model():
    return make_model(keras.optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.5))


def fit(folder, others=(), data=None, model=None, **options):
    """Trains a model; returns it and the logs of its batches."""
    data = data or make_data()
    model = model or make_ema_model()
    log = LossLog()
    settings = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    checkpoints = Checkpoints(folder, data=data, save_every=2)
    model.fit(data.dataset, callbacks=[log, *others, checkpoints], **settings)
    return model, log.logs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder, model, logs and callbacks of a run that is not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    keras.utils.set_random_seed(5)
    callbacks = stateful()
    return folder, *fit(folder, callbacks), callbacks


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Folder of a run with one metric that is stopped after batch 5 of epoch 2."""
    folder = tmp_path_factory.mktemp("stopped")
    stop_within_epoch(folder)
    return folder


def test_a_stopped_run_resumes_exactly(whole, tmp_path, capsys):
    _, model, logs, callbacks = whole
    keras.utils.set_random_seed(5)
    with pytest.raises(Stop):
        fit(tmp_path, [*stateful(), StopAfter(1, 4)])
    unfinished = tmp_path / ".unfinished-epoch-0009.npz-a7"
    unfinished.mkdir()
    keras.utils.set_random_seed(6)
    others = stateful()
    resumed, resumed_logs = fit(tmp_path, others, verbose=2)
    assert not unfinished.exists()
    output = capsys.readouterr().out
    newest = tmp_path / "epoch-0002-after-batch-000004.npz"
    assert f"Resuming at epoch 2, batch 5. Checkpoint: {newest}\n" in output
    for epoch in (2, 3):  # The progress bar counts the batches of the whole epoch.
        assert f"Epoch {epoch}/3\n{BATCHES}/{BATCHES} " in output
    assert list(resumed_logs) == [key for key in logs if key >= (1, 4)]
    for key, values in resumed_logs.items():
        np.testing.assert_allclose(values, logs[key], rtol=0, atol=1e-6)
    assert resumed.history.epoch == list(range(EPOCHS))
    np.testing.assert_allclose(
        resumed.history.history["loss"], model.history.history["loss"], atol=1e-6
    )
    assert (others[0].wait, others[0].best) == (callbacks[0].wait, callbacks[0].best)
    assert others[0].wait == EPOCHS - 1
    for a, b in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def fit_steps(folder, steps, others=()):
    """Trains for a number of batches; returns the model and the logs of its batches."""
    data, model, log = make_data(), make_model(), LossLog()
    model.fit(
        data.dataset,
        validation_data=make_data().dataset,
        epochs=-(-steps // BATCHES),
        shuffle=False,
        verbose=0,
        callbacks=[
            *(log, TrainingProgress(data.tokens_per_epoch), *others),
            Checkpoints(folder, data, save_every=2, total_steps=steps),
        ],
    )
    return model, log.logs


@pytest.mark.parametrize("stop", [(0, 3), (1, 1)])
def test_a_number_of_steps_ends_a_run_within_an_epoch(tmp_path, stop):
    """The run has one whole epoch, and 4 batches of the second."""
    steps = BATCHES + 4
    keras.utils.set_random_seed(5)
    model, logs = fit_steps(tmp_path / "whole", steps)
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == steps
    assert [*logs] == [(0, n) for n in range(BATCHES)] + [(1, n) for n in range(4)]
    history = model.history.history
    assert len(history["val_loss"]) == 2 and history["minutes_left"][-1] == 0
    assert history["minutes_left"][0] > 0
    keras.utils.set_random_seed(5)
    with pytest.raises(Stop):
        fit_steps(tmp_path / "stopped", steps, [StopAfter(*stop)])
    resumed, _ = fit_steps(tmp_path / "stopped", steps)
    again, none = fit_steps(tmp_path / "stopped", steps)  # It is complete.
    assert not none
    for each in (resumed, again):
        assert int(keras.ops.convert_to_numpy(each.optimizer.iterations)) == steps
        for a, b in zip(model.get_weights(), each.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.once("torch")
def test_fewer_steps_than_an_epoch(tmp_path):
    model, logs = fit_steps(tmp_path, 3)
    assert [*logs] == [(0, 0), (0, 1), (0, 2)]
    assert [path.name for path in checkpoint_files(tmp_path).values()][-1] == (
        "epoch-0001.npz"
    )
    assert len(model.history.history["val_loss"]) == 1


@pytest.mark.once("torch")
def test_epochs_that_do_not_match_the_steps(tmp_path):
    data, model = make_data(), make_model()
    callbacks = [Checkpoints(tmp_path, data, total_steps=BATCHES + 1)]
    message = f"`epochs` of `fit` must be 2 for `total_steps={BATCHES + 1}` and"
    with pytest.raises(ValueError, match=message):
        model.fit(data.dataset, epochs=3, shuffle=False, callbacks=callbacks)
    with pytest.raises(ValueError, match="`data` must be given with `total_steps`"):
        Checkpoints(tmp_path, total_steps=3)


@pytest.mark.once("torch")
def test_a_model_of_keras_resumes_exactly_with_its_callbacks(tmp_path):
    """`fit` of Keras does not give its callbacks to one of them."""

    def fit(folder, *others):
        model = compile_model(
            make_network(), keras.optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.5)
        )
        data, log, callbacks = make_data(), LossLog(), stateful()
        checkpoints = Checkpoints(
            folder, data, save_every=2, callbacks=[log, *callbacks]
        )
        model.fit(
            data.dataset,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            callbacks=[log, *callbacks, *others, checkpoints],
        )
        return model, log.logs, callbacks[0]

    keras.utils.set_random_seed(5)
    model, logs, stopping = fit(tmp_path / "whole")
    keras.utils.set_random_seed(5)
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(1, 4))
    keras.utils.set_random_seed(6)
    resumed, resumed_logs, resumed_stopping = fit(tmp_path / "run")
    assert list(resumed_logs) == [key for key in logs if key >= (1, 4)]
    assert_same_runs((model, logs), (resumed, resumed_logs))
    assert resumed_stopping.wait == stopping.wait == EPOCHS - 1


@pytest.mark.once("torch")
def test_a_model_of_keras_requires_callbacks(tmp_path):
    data, callbacks = make_data(), [Checkpoints(tmp_path)]
    match = "`callbacks` must be the other callbacks .* class Functional; .*=None`"
    with pytest.raises(ValueError, match=match):
        compile_model(make_network()).fit(
            data.dataset, shuffle=False, callbacks=callbacks
        )


def test_a_complete_run_does_nothing(whole, tmp_path, capsys):
    folder, model, _, _ = whole
    again, logs = fit(folder, stateful(), verbose=2)
    newest = folder / f"epoch-{EPOCHS:04}.npz"
    assert capsys.readouterr().out == f"The run is complete. Checkpoint: {newest}\n"
    assert logs == {}
    assert again.history.history == model.history.history
    assert again.history.epoch == model.history.epoch
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    # Otherwise Keras would begin another `fit` at the same epoch.
    assert again._initial_epoch is None


@pytest.mark.once("torch")
def test_a_damaged_checkpoint_is_skipped(whole, tmp_path, capsys):
    shutil.copytree(whole[0], tmp_path / "run")
    newest = tmp_path / f"run/epoch-{EPOCHS:04}.npz"
    newest.write_bytes(newest.read_bytes()[:-100])
    (tmp_path / f"run/epoch-{EPOCHS:04}-after-batch-000006.npz").unlink()
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
        fit(tmp_path / "run", stateful(), epochs=EPOCHS - 1, verbose=2)
    before = tmp_path / f"run/epoch-{EPOCHS - 1:04}.npz"
    assert capsys.readouterr().out == f"The run is complete. Checkpoint: {before}\n"


@pytest.mark.once("torch")
def test_all_checkpoints_are_damaged(tmp_path):
    (tmp_path / "epoch-0001.npz").write_bytes(b"PK")
    (tmp_path / "epoch-0002.npz").write_bytes(b"")
    match = f"folder={str(tmp_path)!r}`, where all 2 are damaged"
    with (
        pytest.warns(UserWarning, match="is skipped"),
        pytest.raises(OSError, match=re.escape(match)),
    ):
        fit(tmp_path)


CHANGES = {
    **{f"no {name}": {name: ...} for name in ("model", "random", "history")},
    "more epochs": {"epoch": 10**9},
    "variables": {"model": [{"name": "a", "value": 5}]},
    "names": {"optimizer": [{"value": np.zeros(2)}]},
    "callbacks": {"callbacks": [5]},
    "attributes": {"callbacks": [{"class": "EarlyStopping", "attributes": 5}]},
    "history": {"history": {"epoch": [0], "history": {"loss": 5}}},
    "words": {"random": {"python": [3, [1, 2], None], "numpy": {}}},
    "data": {"data": {"epoch": "1"}},
}


@pytest.mark.once("torch")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_state_that_was_changed_is_skipped(whole, change):
    paths = [*checkpoint_files(whole[0]).values()]
    path = paths[-1]
    content, before = storage.read_checkpoint(path), path.read_bytes()
    run_state.check_state(path, content)
    changed = {k: v for k, v in {**content, **change}.items() if v is not ...}
    storage.write_checkpoint(path, changed)
    try:
        with pytest.warns(UserWarning, match=rf"skipped: .*{path.name} is damaged"):
            readable = storage.readable_checkpoints(
                reversed(paths), check=run_state.check_state
            )
            assert next(readable)[0] == paths[-2]
    finally:
        path.write_bytes(before)


@pytest.mark.once("torch")
def test_checkpoints_of_another_model(whole):
    other = make_model(keras.optimizers.SGD())
    with pytest.raises(ValueError, match="same model and optimizer; .* Use a separate"):
        fit(whole[0], model=other)
    assert not storage._LOCKS


def test_a_run_resumes_for_more_epochs_without_data(tmp_path):
    """Arrays, float16 with its loss scale, and Keras's own dropout."""
    keras.config.set_dtype_policy("mixed_float16")
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")

    def fit(epochs):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5)])
        model.add(keras.layers.Dense(1))
        model.compile("adam", "mse")
        checkpoints = Checkpoints(tmp_path, callbacks=[])
        options = {"epochs": epochs, "shuffle": False, "verbose": 0, "batch_size": 4}
        return model.fit(x, x[:, :1], callbacks=[checkpoints], **options), model

    try:
        keras.utils.set_random_seed(5)
        whole, model = fit(2)
        (tmp_path / "epoch-0002.npz").unlink()
        keras.utils.set_random_seed(6)
        resumed, again = fit(2)
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(again.optimizer, keras.optimizers.LossScaleOptimizer)
    for a, b in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert resumed.history == whole.history
    assert resumed.epoch == [0, 1]


@pytest.mark.once("torch")
def test_a_failed_write_does_not_stop_the_run(tmp_path):
    class FullDisk(keras.callbacks.Callback):
        """Limits the size of files while batch 3 is trained."""

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, self.limits[1]))

        def on_train_batch_end(self, batch, logs=None):
            resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)

    match = "epoch-0001-after-batch-000002.npz is not saved: .*File too large"
    with pytest.warns(UserWarning, match=match):
        fit(tmp_path, [FullDisk()], epochs=1)
    names = [path.name for path in checkpoint_files(tmp_path).values()]
    assert names == ["epoch-0001-after-batch-000006.npz", "epoch-0001.npz"]


class EndEpoch(keras.callbacks.Callback):
    """Stops training within an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 3


@pytest.mark.once("torch")
def test_an_epoch_that_is_cut_short_is_not_saved_as_complete(tmp_path):
    fit(tmp_path, [EndEpoch()])
    assert list(checkpoint_files(tmp_path)) == [RunPosition(0, 2)]


@pytest.mark.once("torch")
@pytest.mark.filterwarnings("ignore:The loss is NaN or infinite in epoch 1")
def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = make_model(keras.optimizers.SGD(float("inf")))
    with pytest.warns(
        UserWarning, match="is not saved, as weights are NaN or infinite"
    ):
        fit(tmp_path, model=model, epochs=1)
    assert checkpoint_files(tmp_path) == {}


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "options, expected",
    [
        ({"save_every_seconds": 1e-9}, [0, 1, 2, 3, 4, 5, 6]),
        ({"save_every_seconds": None}, []),
        ({"save_every_seconds": 1e9}, []),
        ({"save_every_seconds": 1e9, "save_every": 3}, [3, 6]),
    ],
)
def test_checkpoints_by_time(tmp_path, options, expected):
    class Saved(keras.callbacks.Callback):
        """Collects the batches after which there are checkpoints."""

        found = set()

        def on_train_batch_end(self, batch, logs=None):
            Saved.found |= {place.batches for place in checkpoint_files(tmp_path)}

    data, model = make_data(), make_adam()
    callbacks = [Saved(), Checkpoints(tmp_path, data, **options)]
    model.fit(data.dataset, shuffle=False, verbose=0, callbacks=callbacks)
    assert sorted(Saved.found) == [batch for batch in expected if batch]
    assert RunPosition(1) in checkpoint_files(tmp_path)


@pytest.mark.once("torch")
def test_a_run_that_early_stopping_ended_is_complete(tmp_path, capsys):
    def stopping():
        options = {"mode": "max", "restore_best_weights": True}
        return keras.callbacks.EarlyStopping("loss", patience=1, **options)

    model, logs = fit(tmp_path, [stopping()])
    assert max(logs) == (1, BATCHES - 1)
    again, logs = fit(tmp_path, [stopping()], verbose=2)
    newest = tmp_path / "epoch-0002.npz"
    assert capsys.readouterr().out == f"The run is complete. Checkpoint: {newest}\n"
    assert logs == {}
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def make_adam(rate=1e-2):
    return make_model(keras.optimizers.Adam(rate))


def stop_within_epoch(folder, others=(), model=None, epoch=1):
    with pytest.raises(Stop):
        fit(folder, [*others, StopAfter(epoch, 4)], model=model or make_adam())


def assert_same_runs(one, other):
    (model, logs), (resumed, resumed_logs) = one, other
    for key, values in resumed_logs.items():
        np.testing.assert_allclose(values, logs[key], rtol=0, atol=1e-6)
    for a, b in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def halving():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)


@pytest.mark.once("torch")
def test_callbacks_that_change_the_state_when_an_epoch_begins(tmp_path):
    keras.utils.set_random_seed(5)
    whole = fit(tmp_path / "whole", [halving()], model=make_adam())
    keras.utils.set_random_seed(5)
    stop_within_epoch(tmp_path / "run", [halving()])
    resumed = fit(tmp_path / "run", [halving()], model=make_adam())
    assert_same_runs(whole, resumed)
    rates = [model.history.history["learning_rate"] for model, _ in (whole, resumed)]
    np.testing.assert_allclose(*rates)
    np.testing.assert_allclose(rates[0], [5e-3, 2.5e-3, 1.25e-3])


@pytest.mark.once("torch")
def test_moving_averages_of_a_run_with_more_epochs(whole, tmp_path):
    """Keras overwrites the weights with the averages at the end of the last epoch."""
    _, *longer_from_the_start, _ = whole
    keras.utils.set_random_seed(5)
    shorter, _ = fit(tmp_path / "run", stateful(), epochs=EPOCHS - 1)
    again, logs = fit(tmp_path / "run", stateful(), epochs=EPOCHS - 1)
    assert logs == {}
    assert_same_runs((shorter, {}), (again, {}))
    longer = fit(tmp_path / "run", stateful())
    assert list(longer[1]) == [(EPOCHS - 1, batch) for batch in range(BATCHES)]
    assert_same_runs(longer_from_the_start, longer)
    data, averaged = make_data(), make_model(keras.optimizers.SGD(use_ema=True))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    fit(tmp_path / "other", [swap], model=averaged, data=data, epochs=1)
    for a, b in zip(
        averaged.trainable_variables,
        averaged.optimizer._model_variables_moving_average,
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.once("torch")
@pytest.mark.parametrize("count", [2, 0])
def test_other_metrics_within_an_epoch(stopped, tmp_path, count):
    class Last(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.logs = logs

    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    metrics = [Perplexity(), MaskedTokenAccuracy()][:count]
    model = make_adam()
    model.compile(model.optimizer, LabelSmoothedCrossEntropy(), metrics=metrics)
    match = "`metrics` differ .* in epoch 2 they start at batch 5"
    last, data = Last(), make_data()
    callbacks = [last, Checkpoints(tmp_path, data)]
    with pytest.warns(UserWarning, match=match):
        model.fit(data.dataset, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    assert len(last.logs) == 1 + count
    assert np.isfinite(list(last.logs.values())).all()


@pytest.mark.once("torch")
def test_another_learning_rate_is_ignored_with_a_warning(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    match = (
        "`learning_rate=0.0001` is ignored: .* with 0.01 from .*LearningRateScheduler`"
    )
    with pytest.warns(UserWarning, match=match):
        model, _ = fit(tmp_path, model=make_adam(1e-4), epochs=2)
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 1e-2)
    # There is no warning for the same command, or for the rate that a callback has set.
    model, _ = fit(tmp_path, [halving()], model=make_adam(), epochs=3)
    fit(tmp_path, model=make_adam(), epochs=3)
    fit(tmp_path, model=make_adam(5e-3), epochs=3)
    # The remedy in the warning works.
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-4)
    model, _ = fit(tmp_path, [scheduler], model=make_adam(1e-4), epochs=4)
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 1e-4)


@pytest.mark.once("torch")
def test_a_learning_rate_that_is_set_while_training(tmp_path):
    class Halving(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(optimizer.learning_rate) / 2

    model = make_adam()
    stop_within_epoch(tmp_path, [Halving()], model=model)
    fit(
        tmp_path, [Halving()], model=model, epochs=2
    )  # Like a notebook cell that runs again.


@pytest.mark.once("torch")
def test_logs_of_tensors(tmp_path):
    class Tensors(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["rate"] = self.model.optimizer.learning_rate
            logs["half"] = keras.ops.cast(0.5, "float16")

    fit(tmp_path, [Tensors()], model=make_adam(), epochs=1)
    again, _ = fit(tmp_path, [Tensors()], model=make_adam(), epochs=1)
    history = again.history.history
    np.testing.assert_allclose(history["rate"] + history["half"], [1e-2, 0.5])
    assert {type(value) for value in history["rate"] + history["half"]} == {float}


@pytest.mark.once("torch")
def test_a_folder_that_is_locked(tmp_path):
    with (tmp_path / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process; .*, where another proc"):
            fit(tmp_path)
    stop_within_epoch(tmp_path, epoch=0)
    assert not storage._LOCKS


@pytest.mark.once("torch")
def test_an_interrupted_run_of_a_model_of_keras_keeps_its_lock(tmp_path):
    data, model = make_data(), compile_model(make_network())

    def fit(*others):
        checkpoints = Checkpoints(tmp_path, data, callbacks=[])
        callbacks = [*others, checkpoints]
        model.fit(data.dataset, shuffle=False, verbose=0, callbacks=callbacks)

    with pytest.raises(Stop):
        fit(StopAfter(0, 4))
    assert os.path.realpath(tmp_path) in storage._LOCKS
    fit()  # The same process, as in a notebook.
    assert not storage._LOCKS


@pytest.mark.once("torch")
def test_a_folder_that_was_removed_is_locked_again(tmp_path):
    folder = tmp_path / "run"
    for _ in range(2):
        folder.mkdir()
        storage.acquire_lock(folder)
        assert (folder / storage.LOCK).exists()
        shutil.rmtree(folder)
    storage.release_lock(folder)


@pytest.mark.slow
@pytest.mark.once("torch")
def test_forked_processes_do_not_have_the_lock(tmp_path):
    code = """if True:
        import os, pathlib, sys
        from keras_transformer.training.checkpoints import storage

        folder = pathlib.Path(sys.argv[1])
        storage.acquire_lock(folder)
        reader, writer = os.pipe()
        end, until_the_parent_has_ended = os.pipe()
        if os.fork() == 0:
            os.close(until_the_parent_has_ended)
            try:
                storage.acquire_lock(folder)
                os.write(writer, b"locked")
            except ValueError:
                os.write(writer, b"refused")
            os.close(1), os.close(2)
            os.read(end, 1)
            os._exit(0)
        print("the child is", os.read(reader, 7).decode())
        storage.release_lock(folder)
        storage.acquire_lock(folder)
        print("the parent locks again")
    """
    process = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True
    )
    expected = "the child is refused\nthe parent locks again\n"
    assert process.stdout == expected, process.stderr


@pytest.mark.once("torch")
def test_a_call_from_elsewhere(tmp_path):
    class Calling(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            Checkpoints(tmp_path).on_train_begin(logs)

    with pytest.raises(ValueError, match="one of the `callbacks` given to `fit`; .*"):
        Checkpoints(tmp_path).on_train_begin()
    with pytest.raises(ValueError, match="one of the `callbacks` given to `fit`; .*"):
        make_model().fit(make_data().dataset, callbacks=[Calling()], shuffle=False)


# Keras warns at the end of data of unknown size.
@pytest.mark.once("torch")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_an_epoch_of_unknown_size_that_is_cut_short_is_not_saved(tmp_path):
    data = make_data()
    batches = [*data.dataset]
    stacked = keras.tree.map_structure(lambda *each: np.stack(each), *batches)
    unknown = type(data.dataset).from_tensor_slices(stacked).filter(lambda *each: True)
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    model = make_model()
    model.fit(unknown, callbacks=[EndEpoch(), Checkpoints(tmp_path)], **options)
    assert not checkpoint_files(tmp_path)
    make_model().fit(unknown, callbacks=[Checkpoints(tmp_path)], **options)
    assert list(checkpoint_files(tmp_path)) == [RunPosition(1), RunPosition(2)]


# Arguments.


@pytest.mark.once("torch")
@pytest.mark.parametrize("value", [{1: "a"}, {"a": (1, {2})}])
def test_state_that_cannot_be_saved(value, tmp_path):
    class Stateful(keras.callbacks.Callback):
        checkpointed_attributes = ("seen",)
        seen = value

    data = make_data()
    callbacks = [Stateful(), Checkpoints(tmp_path, data)]
    match = "`checkpointed_attributes` must be .* received `Stateful.seen="
    with pytest.raises(ValueError, match=match):
        make_model().fit(data.dataset, callbacks=callbacks, shuffle=False)


@pytest.mark.once("torch")
def test_callbacks_with_state_come_first(tmp_path):
    data, late = make_data(), keras.callbacks.EarlyStopping("loss")
    match = "must come after .* received EarlyStopping after it. Put .* last"
    with pytest.raises(ValueError, match=match):
        make_model().fit(
            data.dataset, callbacks=[Checkpoints(tmp_path, data), late], shuffle=False
        )


@pytest.mark.once("torch")
def test_steps_per_epoch(tmp_path):
    match = f"without `steps_per_epoch`; .* of {BATCHES} batches .* makes 3 steps"
    with pytest.raises(ValueError, match=match):
        fit(tmp_path, steps_per_epoch=3)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "window", [{}, {"window": 12, "batches_per_epoch": 3, **LIMITS}]
)
def test_other_data_and_another_backend_are_said(tmp_path, window):
    sources = ["abc", "bca", "cab", "fed", "def", "efd"] * 2
    targets = [source[::-1] for source in sources]
    tokenizer = CharacterTokenizer.train(lines=[LETTERS])

    def data_of(targets, **options):
        return parallel_dataset(
            pairs=zip(sources, targets, strict=True),
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            tokens_per_batch=16,
            **{**window, **options},
        )

    def resume(data, folder="a"):
        fit(tmp_path / folder, data=data, model=make_model(), epochs=2)

    fit(tmp_path / "a", data=data_of(targets), model=make_model(), epochs=1)
    for folder in "bcd":
        shutil.copytree(tmp_path / "a", tmp_path / folder)
    resume(data_of(targets))
    with pytest.warns(UserWarning, match="of the run so far in 'texts'. Training"):
        resume(data_of([*targets[1:], targets[0]]), "b")
    with pytest.warns(UserWarning, match="of the run so far in 'order'. Training"):
        resume(data_of(targets, seed=3), "c")
    path = tmp_path / "d" / RunPosition(1).file_name
    state = storage.read_checkpoint(path)
    storage.write_checkpoint(path, {**state, "backend": "jax"})
    with pytest.warns(UserWarning, match="backend 'jax', and continues with 'torch'"):
        resume(data_of(targets), "d")


@pytest.mark.once("torch")
def test_a_copy_has_the_data_that_fit_gets(tmp_path):
    data = make_data()
    for callback in (Checkpoints(tmp_path, data), NonFiniteLoss(data=data)):
        assert copy.deepcopy(callback).data is data
        again = pickle.loads(pickle.dumps(callback))
        assert again.folder == callback.folder
        assert again.data.checksums == data.checksums
    model, copied = make_ema_model(), copy.deepcopy(Checkpoints(tmp_path, data))
    model.fit(data.dataset, epochs=1, shuffle=False, verbose=0, callbacks=[copied])
    assert [*checkpoint_files(tmp_path)] == [RunPosition(1)]


@pytest.mark.once("torch")
def test_data_are_required_to_resume_within_an_epoch(tmp_path):
    data, model = make_data(), make_model()
    state = {
        **dict.fromkeys(("model", "optimizer", "metrics", "callbacks"), []),
        "epoch": 1,
        "batch": 3,
        "backend": "torch",
        "data_identity": None,
        "learning_rates": [],
        "data": None,
        "random": random_state.save_random_state(),
        "seed": None,
        "history": {"epoch": [0], "history": {}},
    }
    storage.write_checkpoint(tmp_path / RunPosition(1, 3).file_name, state)
    with pytest.raises(ValueError, match="must be given to resume within .*000003.npz"):
        model.fit(data.dataset, callbacks=[Checkpoints(tmp_path)], shuffle=False)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"keep": 0}, "`keep` must be an int of at least 1; received `keep=0`"),
        ({"save_every": 0.5}, "`save_every` must be an int .*=0.5`"),
        ({"save_every_seconds": 0}, "`save_every_seconds` must be a .* above 0"),
        (
            {"save_every": 5},
            "must be given with `save_every`, .*=None` and `save_every=5`",
        ),
        ({"callbacks": [5]}, r"`callbacks` must be a list .* `callbacks=\[5\]`"),
        ({"data": [1]}, r"`data` must be the `ParallelDataset` .*`data=\[1\]`"),
    ],
)
def test_invalid_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        Checkpoints("runs", **arguments)


@pytest.mark.once("torch")
def test_other_data(tmp_path):
    data = make_data()
    options = {"shuffle": False, "verbose": 0}
    options["callbacks"] = [Checkpoints(tmp_path, data)]
    make_model().fit(data.dataset, epochs=1, **options)
    pairs = [("abc", "cba")] * (BATCHES * ROWS)
    tokenizer = CharacterTokenizer.train(lines=[LETTERS])
    tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    other = parallel_dataset(pairs=pairs, tokens_per_batch=10 * LENGTH, **tokenizers)
    options["callbacks"] = [Checkpoints(tmp_path, other)]
    with pytest.warns(UserWarning, match="`data` differ .*'batches_per_epoch'"):
        make_model().fit(other.dataset, epochs=2, **options)
