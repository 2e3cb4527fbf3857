import io
import math
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from small_run import BATCHES, make_data, make_model

from keras_transformer import Checkpoints, TrainingProgress, WarmupInverseSquareRoot
from keras_transformer.training import training_progress as module

RNG = np.random.default_rng(67)
INPUTS, TARGETS = RNG.normal(size=(12, 3)), RNG.normal(size=(12, 2))
SCHEDULE = WarmupInverseSquareRoot(0.1, warmup_steps=5)


class Logs(keras.callbacks.Callback):
    """Stores the logs of callbacks after `TrainingProgress`."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(dict(logs))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))


def fit(optimizer, steps_per_execution=1, **arguments):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    seen = Logs()
    arguments = {"epochs": 2, "batch_size": 2, "verbose": 0, **arguments}
    history = model.fit(
        INPUTS, TARGETS, callbacks=[TrainingProgress(500), seen], **arguments
    ).history
    return seen, history


@pytest.mark.parametrize("steps_per_execution, loss_scale", [(1, True), (2, False)])
def test_learning_rate_of_a_schedule(steps_per_execution, loss_scale):
    if keras.backend.backend() == "torch":
        steps_per_execution = 1  # PyTorch executes one step at a time.
    optimizer = keras.optimizers.SGD(SCHEDULE)
    if loss_scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    seen, history = fit(optimizer, steps_per_execution)
    expected = [
        float(SCHEDULE(n)) for n in range(steps_per_execution, 13, steps_per_execution)
    ]
    rates = [logs["learning_rate"] for logs in seen.batches]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    ends = [float(SCHEDULE(6)), float(SCHEDULE(12))]
    np.testing.assert_allclose(history["learning_rate"], ends, rtol=1e-6)
    assert history["learning_rate"] == [log["learning_rate"] for log in seen.epochs]


@pytest.mark.once("torch")
def test_learning_rate_with_gradient_accumulation():
    """Schedules count batches; `optimizer.iterations` counts updates."""
    optimizer = keras.optimizers.SGD(SCHEDULE, gradient_accumulation_steps=2)
    seen, history = fit(optimizer)
    rates = [logs["learning_rate"] for logs in seen.batches]
    expected = [float(SCHEDULE(n)) for n in range(1, 13)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    np.testing.assert_allclose(history["learning_rate"], expected[5::6], rtol=1e-6)


@pytest.mark.once("torch")
def test_several_optimizers_have_no_learning_rate():
    optimizers = keras.optimizers
    rates = optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.SGD()})
    seen, history = fit(optimizers.MultiOptimizer(rates))
    assert "learning_rate" not in history
    assert all("minutes_left" in logs for logs in seen.batches)


@pytest.mark.once("torch")
def test_learning_rate_that_another_callback_changes():
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.4), "mse")
    seen = Logs()
    callbacks = [TrainingProgress(), halve, seen]
    model.fit(INPUTS, TARGETS, 4, epochs=2, verbose=0, callbacks=callbacks)
    rates = [logs["learning_rate"] for logs in seen.batches]
    np.testing.assert_allclose(rates, [0.2] * 3 + [0.1] * 3)
    assert "tokens_per_second" not in seen.epochs[0]


@pytest.mark.once("torch")
def test_a_line_for_each_epoch(monkeypatch, capsys):
    run = Run(monkeypatch, steps=1)
    scores = {"loss": 1.23456, "val_loss": 2.0, "val_exact_match": 98.5}
    run.epoch(0, batches=1, seconds=75.0, logs={**scores, "val_bleu": math.nan})
    run.epoch(2, batches=1, seconds=75.0, logs=scores)
    assert capsys.readouterr().out == (
        "Epoch 1/3  loss 1.235, valid loss 2, exact match 98.5, 75 s, 2 min left\n"
        "Epoch 3/3  loss 1.235, valid loss 2, exact match 98.5, 75 s\n"
    )
    run.progress.metrics = ["val_exact_match"]
    run.epoch(2, batches=1, seconds=75.0, logs=scores)
    assert capsys.readouterr().out == "Epoch 3/3  exact match 98.5, 75 s\n"


@pytest.mark.once("torch")
def test_the_line_with_motion(monkeypatch):
    run = Run(monkeypatch, steps=4, first_batch=4, epochs=2)
    run.progress.set_params({**run.params, "steps": 4})
    run.progress.on_epoch_begin(0)
    stage = run.progress._stage
    run.progress.on_train_batch_begin(0)
    assert (stage.name, stage.details) == ("Epoch 1/2", ["compiling"])
    run.now += 3.0
    run.progress.on_train_batch_end(0, {"loss": 1.23456})
    assert (stage.done, stage.total) == (5, 8)
    assert stage.details == ["33 s left", "loss 1.235", "25 tokens/s"]
    run.progress.on_test_begin()
    assert (stage.name, stage.total) == ("Epoch 1/2  validation", None)
    run.progress.on_test_batch_end(0)
    run.progress.on_test_batch_end(1)
    run.progress.on_test_end()
    run.progress.on_epoch_end(0, {})
    run.progress.on_epoch_begin(1)
    run.progress.on_test_begin()
    assert run.progress._stage.total == 2
    run.progress.close()


@pytest.mark.once("torch")
@pytest.mark.parametrize("verbose, lines", [(0, 0), (2, 1), ("auto", 1)])
def test_it_takes_the_place_of_the_bar_of_keras(verbose, lines, capsys):
    data, options = make_data(), {"epochs": 1, "shuffle": False}
    progress = TrainingProgress(data.tokens_per_epoch)
    callbacks = [progress]
    make_model().fit(data.dataset, callbacks=callbacks, verbose=verbose, **options)
    output = capsys.readouterr().out
    assert output.count("Epoch 1/1  loss") == output.count("\n") == lines


@pytest.mark.once("torch")
def test_an_exception_removes_the_line_with_motion(monkeypatch):
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ZeroDivisionError

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ZeroDivisionError):
        data = make_data()
        callbacks = [TrainingProgress(), Fail()]
        make_model().fit(data.dataset, callbacks=callbacks, shuffle=False)
    assert sys.stderr is terminal
    assert terminal.getvalue().count("\x1b[?25h") == 1  # the cursor is shown again


@pytest.mark.once("torch")
def test_the_time_after_the_last_epoch(monkeypatch):
    run = Run(monkeypatch, steps=1, epochs=2, seconds_after=lambda end: 30 + 2 * end)
    logs = run.epoch(0, batches=1, seconds=4.0, validation=7.0)
    assert values(logs, "minutes_left") == [(4 + 30) / 60, (4 + 7 + 30 + 14) / 60]


@pytest.mark.once("jax")
def test_the_model_is_not_read_within_an_epoch():
    """On JAX, reading the model after each batch would wait for the device."""
    reads = []

    class Model(keras.Sequential):
        def jax_state_sync(self):
            reads.append(self)
            super().jax_state_sync()

    progress = TrainingProgress()
    model = Model([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    progress.set_model(model)
    progress.set_params({"steps": 2, "epochs": 1, "verbose": 0})
    progress.on_train_begin()
    progress.on_epoch_begin(0)
    progress.on_train_batch_begin(0)
    reads.clear()
    for batch in range(2):
        progress.on_train_batch_begin(batch)
        progress.on_train_batch_end(batch, {})
    assert reads == []
    assert progress.async_safe


class Run:
    """Calls `TrainingProgress` as `fit` does, with a simulated clock."""

    def __init__(self, monkeypatch, seconds_after=None, **params):
        self.now = 100.0
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        self.progress = TrainingProgress(600, seconds_after=seconds_after)
        self.progress.set_model(model)
        self.params = {"steps": 4, "epochs": 3, "verbose": 0, **params}
        self.progress.on_train_begin()

    def epoch(self, epoch, batches, seconds, validation=0.0, logs=None, **params):
        """Returns the logs of each batch, and of the epoch."""
        self.progress.set_params({**self.params, **params})
        self.progress.on_epoch_begin(epoch)
        logs = [dict(logs or {}) for _ in range(batches + 1)]
        for batch in range(batches):
            self.progress.on_train_batch_begin(batch)
            self.now += seconds
            self.progress.on_train_batch_end(batch, logs[batch])
        self.now += validation
        self.progress.on_epoch_end(epoch, logs[-1])
        return logs


def values(logs, name):
    return [log.get(name) for log in logs]


@pytest.mark.once("torch")
def test_times_by_hand(monkeypatch):
    run = Run(monkeypatch)
    logs = run.epoch(0, batches=4, seconds=3.0, validation=8.0)
    # 11 to 8 batches of 3 s, then 8 batches of 3 s and 2 validations of 8 s.
    minutes = [11 * 3 / 60, 10 * 3 / 60, 9 * 3 / 60, 8 * 3 / 60, (8 * 3 + 2 * 8) / 60]
    np.testing.assert_allclose(values(logs, "minutes_left"), minutes)
    np.testing.assert_allclose(values(logs, "tokens_per_second"), [50.0] * 5)
    run.now += 4.0  # Callbacks that come later.
    logs = run.epoch(1, batches=4, seconds=1.0)
    # The mean of this epoch, which compiles nothing.
    minutes = [((8 - n) * 1 + 2 * 12) / 60 for n in (1, 2, 3, 4)]
    minutes.append(4 * 1 / 60)  # without validation, in this epoch
    np.testing.assert_allclose(values(logs, "minutes_left"), minutes)
    np.testing.assert_allclose(values(logs, "tokens_per_second"), [150.0] * 5)
    assert values(run.epoch(2, batches=4, seconds=1.0), "minutes_left")[-1] == 0


@pytest.mark.once("torch")
def test_compilation_is_not_extrapolated(monkeypatch):
    run = Run(monkeypatch, steps=10, epochs=2)
    first = run.epoch(0, batches=1, seconds=40.0)  # the first batch compiles
    assert first[0]["minutes_left"] == pytest.approx(19 * 40 / 60)
    run.progress.on_train_begin()
    run.progress.set_params(run.params)
    run.progress.on_epoch_begin(0)
    left = []
    for batch, seconds in enumerate([40.0, 1.0, 30.0, 1.0, 2.0]):
        run.now += seconds
        logs = {}
        run.progress.on_train_batch_begin(batch)
        run.progress.on_train_batch_end(batch, logs)
        left.append(logs["minutes_left"])
    assert left[1:4] == pytest.approx([18 / 60, 17 / 60, 16 / 60])
    assert left[4] == pytest.approx(15 * 4 / 3 / 60)


@pytest.mark.once("torch")
def test_batches_that_arrive_at_once_do_not_mislead(monkeypatch):
    """Of eight batches, seven arrive at once after a pause of 8 s."""
    run = Run(monkeypatch, steps=8, epochs=3)
    for epoch, left in ((0, None), (1, 8), (2, 0)):
        run.progress.set_params(run.params)
        if epoch == 0:
            run.progress.on_train_begin()
        run.progress.on_epoch_begin(epoch)
        for batch in range(8):
            run.now += 8.0 if batch == 0 else 0.001
            run.progress.on_train_batch_begin(batch)
            logs = {}
            run.progress.on_train_batch_end(batch, logs)
        run.progress.on_epoch_end(epoch, logs)
        if left is not None:
            assert logs["minutes_left"] == pytest.approx(left / 60, abs=0.01)


@pytest.mark.once("torch")
def test_several_steps_per_execution(monkeypatch):
    """With an odd number of steps, the last call exceeds it."""
    run = Run(monkeypatch, steps=3, epochs=1)
    run.progress.set_params(run.params)
    run.progress.on_epoch_begin(0)
    for batch in (1, 3):
        run.now += 6.0
        logs = {}
        run.progress.on_train_batch_begin(batch)
        run.progress.on_train_batch_end(batch, logs)
    assert logs["minutes_left"] == 0
    np.testing.assert_allclose(logs["tokens_per_second"], 50.0)


@pytest.mark.once("torch")
def test_a_resumed_epoch(monkeypatch):
    run = Run(monkeypatch)
    logs = run.epoch(1, batches=1, seconds=3.0, steps=1, first_batch=3)
    np.testing.assert_allclose(values(logs, "minutes_left"), [4 * 3 / 60] * 2)
    np.testing.assert_allclose(values(logs, "tokens_per_second"), [50.0] * 2)
    logs = run.epoch(2, batches=4, seconds=3.0)
    np.testing.assert_allclose(values(logs, "minutes_left")[0], 3 * 3 / 60)


@pytest.mark.once("torch")
def test_an_epoch_that_checkpoints_resume(tmp_path):
    """`Checkpoints` begins the epoch after `TrainingProgress`."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise KeyboardInterrupt

    def fit(*others):
        data, seen = make_data(), Logs()
        progress = TrainingProgress(data.tokens_per_epoch)
        checkpoints = Checkpoints(tmp_path, data, save_every=4)
        callbacks = [progress, seen, *others, checkpoints]
        options = {"epochs": 1, "shuffle": False, "verbose": 0}
        make_model().fit(data.dataset, callbacks=callbacks, **options)
        return seen.batches

    with pytest.raises(KeyboardInterrupt):
        fit(Stop())
    batches = fit()
    assert len(batches) == BATCHES - 4
    assert batches[-1]["minutes_left"] == 0 < batches[-2]["minutes_left"]


@pytest.mark.once("torch")
def test_data_of_unknown_size(monkeypatch):
    run = Run(monkeypatch, steps=None)
    logs = run.epoch(0, batches=4, seconds=3.0)
    assert values(logs, "minutes_left") == [*[None] * 4, 8 * 3 / 60]
    assert values(logs, "tokens_per_second") == [*[None] * 4, 50.0]
    logs = run.epoch(1, batches=4, seconds=3.0)
    assert values(logs, "tokens_per_second") == [50.0] * 5


@pytest.mark.once("torch")
def test_batches_that_end_in_another_order(monkeypatch):
    """Keras may call the callback from several threads."""
    run = Run(monkeypatch)
    run.progress.set_params(run.params)
    run.progress.on_epoch_begin(0)
    run.progress.on_train_batch_begin(0)
    logs = [{}, {}]
    run.now += 6.0
    for batch in (1, 0):
        run.progress.on_train_batch_end(batch, logs[batch])
    assert values(logs, "tokens_per_second") == [50.0, 50.0]


@pytest.mark.once("torch")
def test_tokens_per_epoch_must_be_positive():
    with pytest.raises(ValueError, match="at least 1; received `tokens_per_epoch=0`"):
        TrainingProgress(0)
