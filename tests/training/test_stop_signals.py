"""Runs that SIGINT or SIGTERM stops."""

import contextlib
import os
import signal
import threading
import types

import keras
import numpy as np
import pytest
from small_run import (
    BATCHES,
    EPOCHS,
    LossLog,
    compile_model,
    make_data,
    make_model,
    make_network,
)

from keras_transformer import (
    Checkpoints,
    LabelSmoothedCrossEntropy,
    NonFiniteLoss,
    SkipNonFinite,
)
from keras_transformer.training.checkpoints import stop_signals, storage
from keras_transformer_runtime.runs.run_position import checkpoint_files

pytestmark = pytest.mark.once("torch")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEFAULT = (signal.default_int_handler, signal.SIG_DFL)


def handlers():
    return tuple(signal.getsignal(number) for number in SIGNALS)


@pytest.fixture(autouse=True)
def default_handlers():
    before = handlers()
    for number, handler in zip(SIGNALS, DEFAULT, strict=True):
        signal.signal(number, handler)
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


class Sends(keras.callbacks.Callback):
    """Sends a signal from a method of a callback, such as `on_epoch_begin`."""

    def __init__(self, method, epoch=0, batch=None, number=signal.SIGINT):
        super().__init__()
        self.place = epoch, batch
        self.number = number
        self.passed = []
        self.sends = True
        setattr(self, method, self._send)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def _send(self, position=None, logs=None):
        if position is not None and "epoch" not in vars(self):
            self.epoch = position
        batch = self.place[1] and position + self.params.get("first_batch", 0)
        if self.sends and (self.epoch, batch) == self.place:
            self.sends = False
            signal.raise_signal(self.number)
            self.passed.append(self.place)


class InTheFirstStep(keras.callbacks.Callback):
    """Sends a signal while the loss of a batch is computed, or its step compiled."""

    def on_train_batch_begin(self, batch, logs=None):
        SignallingLoss.sends = batch == 0


class SignallingLoss(LabelSmoothedCrossEntropy):
    sends = False

    def __call__(self, *args, **kwargs):
        if SignallingLoss.sends:
            SignallingLoss.sends = False
            signal.raise_signal(signal.SIGINT)
        return super().__call__(*args, **kwargs)


class WhileWriting(keras.callbacks.Callback):
    """Sends a signal while a file is written."""

    def __init__(self, monkeypatch, name):
        super().__init__()
        write = storage.write_checkpoint

        def write_checkpoint(path, state):
            if path.name == name:
                signal.raise_signal(signal.SIGINT)
            write(path, state)

        monkeypatch.setattr(storage, "write_checkpoint", write_checkpoint)


def make_skipping():
    """Returns a model that skips updates which are not finite."""
    optimizer = SkipNonFinite(keras.optimizers.Adam(1e-2))
    return make_model(optimizer, SignallingLoss())


def fit(model, folder, *callbacks, with_data=True, **options):
    """Trains a model with validation; fills the `LossLog` among the callbacks."""
    data = make_data()
    checkpoints = Checkpoints(folder, data if with_data else None)
    settings = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    model.fit(
        data.dataset,
        validation_data=data.batch({"epoch": 0, "batch": 0}),
        callbacks=[*callbacks, checkpoints],
        **settings,
    )


def files(folder):
    return [path.name for path in checkpoint_files(folder).values()]


def at(epoch, batch):
    return f"^Stopped. .* resumes at epoch {epoch}, batch {batch}. Checkpoint: "


def test_a_run_that_signals_stop_everywhere(tmp_path, monkeypatch):
    keras.utils.set_random_seed(5)
    other, log = make_skipping(), LossLog()
    fit(other, tmp_path / "whole", NonFiniteLoss("skip"), log)
    whole, weights = other.history, other.get_weights()
    keras.utils.set_random_seed(5)
    model, folder, logs = make_skipping(), tmp_path / "run", []

    def stop(callback, message, error=KeyboardInterrupt):
        logs.append(LossLog())
        with pytest.raises(error, match=message):
            fit(model, folder, NonFiniteLoss("skip"), logs[-1], callback)
        assert handlers() == DEFAULT
        keras.utils.set_random_seed(6)

    stop(Sends("on_epoch_begin"), "^Stopped before the first checkpoint.$")
    keras.utils.set_random_seed(5)
    stop(InTheFirstStep(), at(1, 2))
    assert logs[-1].logs.keys() == {(0, 0)}
    stop(Sends("on_test_batch_end"), at(1, BATCHES))
    stop(Sends("on_epoch_end"), at(1, BATCHES))
    assert logs[-1].logs.keys() == {(0, BATCHES - 1)}
    stop(Sends("on_train_batch_end", 1, 2, signal.SIGTERM), "^143$", SystemExit)
    assert files(folder)[-1] == "epoch-0002-after-batch-000003.npz"
    stop(WhileWriting(monkeypatch, "epoch-0002.npz"), at(3, 1))
    stop(Sends("on_train_batch_end", 2, BATCHES - 1), at(3, BATCHES))
    logs.append(LossLog())
    fit(other, folder, NonFiniteLoss("skip"), logs[-1])  # Another model.
    assert logs[-1].logs.keys() == {(2, BATCHES - 1)}
    assert {place for each in logs for place in each.logs} == log.logs.keys()
    for place, values in (step for each in logs for step in each.logs.items()):
        np.testing.assert_allclose(values, log.logs[place], rtol=0, atol=1e-6)
    assert other.history.epoch == whole.epoch
    for name, values in whole.history.items():
        np.testing.assert_allclose(other.history.history[name], values, atol=1e-6)
    for a, b in zip(other.get_weights(), weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.fixture
def clock(monkeypatch):
    """Sets the time in seconds."""
    clock = types.SimpleNamespace(seconds=0.0)
    module = types.SimpleNamespace(monotonic=lambda: clock.seconds)
    monkeypatch.setattr(stop_signals, "time", module)
    return clock


class SendsTwice(keras.callbacks.Callback):
    """Sends two signals after the third batch."""

    def __init__(self, clock, seconds, second=signal.SIGINT):
        super().__init__()
        self.clock, self.seconds, self.second = clock, seconds, second
        self.has_passed = False

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            signal.raise_signal(signal.SIGINT)
            self.clock.seconds += self.seconds
            signal.raise_signal(self.second)
            self.has_passed = True


def test_the_second_signal_stops_at_once(clock, tmp_path, capsys):
    callback = SendsTwice(clock, seconds=1.5)
    with pytest.raises(KeyboardInterrupt, match="^$"):
        fit(make_model(), tmp_path, callback, verbose=2)
    message = "Stopping at the end of the batch. Press Ctrl-C again to stop at once."
    assert capsys.readouterr().err == f"\n{message}\n"
    assert not callback.has_passed
    assert not files(tmp_path)
    assert handlers() == DEFAULT


@pytest.mark.parametrize(
    "seconds, second", [(0.5, signal.SIGINT), (1.5, signal.SIGTERM)]
)
def test_two_signals_that_are_one(seconds, second, clock, tmp_path, capsys):
    """`timeout` sends a signal to the process and its group; others send SIGTERM."""
    callback = SendsTwice(clock, seconds, second)
    with pytest.raises(KeyboardInterrupt, match=at(1, 4)):
        fit(make_model(), tmp_path, callback)
    assert callback.has_passed
    assert capsys.readouterr().err == ""  # `verbose=0`


@pytest.mark.parametrize(
    "method, batch, message, steps",
    [
        ("on_train_batch_end", 2, "^Stopped before the first checkpoint.$", 3),
        ("on_train_batch_end", BATCHES - 1, at(2, 1), BATCHES),
        ("on_test_batch_end", None, at(2, 1), BATCHES),
        ("on_epoch_end", None, at(2, 1), BATCHES),
    ],
)
def test_a_run_without_data_waits_for_the_end_of_the_epoch_after_its_last_batch(
    method, batch, message, steps, tmp_path
):
    log, callback = LossLog(), Sends(method, batch=batch)
    with pytest.raises(KeyboardInterrupt, match=message):
        fit(make_model(), tmp_path, log, callback, with_data=False)
    assert len(log.logs) == steps
    assert callback.passed


def test_a_handler_of_the_program_is_called_after_the_checkpoint(tmp_path):
    found = []

    def handle(number, frame):
        found.append((number, files(tmp_path)))

    signal.signal(signal.SIGTERM, handle)
    callback, log = Sends("on_train_batch_end", 0, 2, signal.SIGTERM), LossLog()
    fit(make_model(), tmp_path, log, callback)
    assert found == [(signal.SIGTERM, ["epoch-0001-after-batch-000003.npz"])]
    assert len(log.logs) == EPOCHS * BATCHES  # It has raised nothing.
    assert handlers() == (signal.default_int_handler, handle)


class Ignores(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_exception_that_is_ignored_is_raised_again(tmp_path):
    log = LossLog()
    with pytest.raises(KeyboardInterrupt, match=at(2, 1)):
        fit(make_model(), tmp_path, log, Ignores())
    assert len(log.logs) == BATCHES
    assert handlers() == DEFAULT


def test_fit_in_another_thread(tmp_path):
    found = []

    class Handlers(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append(handlers())

    arguments = make_model(), tmp_path, Handlers()
    thread = threading.Thread(target=fit, args=arguments, kwargs={"epochs": 1})
    thread.start()
    thread.join()
    assert found == BATCHES * [DEFAULT]
    assert files(tmp_path) == ["epoch-0001.npz"]


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise RuntimeError("a failure")


def test_an_error_in_fit_restores_the_handlers(tmp_path):
    # A debugger or a notebook holds the error, and with it the frames of `fit`.
    with pytest.raises(RuntimeError, match="a failure") as held:
        fit(make_skipping(), tmp_path, Fails())
    assert handlers() == DEFAULT
    with pytest.raises(RuntimeError, match="a failure") as other:
        fit(make_skipping(), tmp_path, Fails())
    assert handlers() == DEFAULT
    assert held is not other


def test_a_model_of_keras_leaves_signals_as_they_are(tmp_path):
    data, model, log = make_data(), compile_model(make_network()), LossLog()

    def fit(*others):
        checkpoints = Checkpoints(tmp_path, data, save_every=2, callbacks=[log])
        callbacks = [log, *others, checkpoints]
        model.fit(data.dataset, shuffle=False, verbose=0, callbacks=callbacks)

    with pytest.raises(KeyboardInterrupt, match="^$"):
        fit(Sends("on_train_batch_end", batch=4))
    assert handlers() == DEFAULT
    assert len(log.logs) == 5
    log.logs.clear()
    fit()  # It resumes from the newest checkpoint, before batch 5.
    assert list(log.logs) == [(0, batch) for batch in range(4, BATCHES)]


class Inner(keras.callbacks.Callback):
    """Trains another model in the first epoch."""

    def __init__(self, folder, *callbacks):
        super().__init__()
        self.arguments = make_skipping(), folder, *callbacks

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            fit(*self.arguments, epochs=1)


def test_several_checkpoints_and_a_fit_within_another(tmp_path):
    inner, two = tmp_path / "inner", Checkpoints(tmp_path / "two", make_data())
    with pytest.raises(KeyboardInterrupt):
        sends = Sends("on_train_batch_end", 0, 2)
        fit(make_model(), tmp_path / "one", Inner(inner), two, sends)
    assert handlers() == DEFAULT
    saved = [files(tmp_path / name)[-1] for name in ("one", "two")]
    assert saved == [f"epoch-0001-after-batch-00000{n}.npz" for n in (3, 4)]
    fit(make_model(), tmp_path / "one", two, epochs=1)
    assert handlers() == DEFAULT
    assert files(inner) == ["epoch-0001.npz"]


class Forks(keras.callbacks.Callback):
    """Forks a process, as `multiprocessing` does, and terminates it."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.process = os.fork()
            if not self.process:
                with contextlib.suppress(BaseException):
                    signal.raise_signal(signal.SIGTERM)
                os._exit(0)


@pytest.mark.slow
def test_a_forked_process_has_the_handlers_before(tmp_path):
    forks = Forks()
    fit(make_model(), tmp_path, forks, epochs=1)
    status = os.waitpid(forks.process, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
