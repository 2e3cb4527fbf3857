import json
import re

import keras
import numpy as np
import pytest
from keras import ops
from small_run import (
    BATCHES,
    ROWS,
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
from keras_transformer.training import TokenTrainer


class FaultyLoss(LabelSmoothedCrossEntropy):
    """Not finite for the batch with the x, in the loss or in the gradient as well."""

    def __init__(self, fault_token_id, in_gradient):
        super().__init__()
        self.fault_token_id = fault_token_id
        self.in_gradient = in_gradient

    def __call__(self, y_true, y_pred, sample_weight=None):
        loss = super().__call__(y_true, y_pred, sample_weight)
        fault = ops.any(ops.equal(y_true, self.fault_token_id))
        if self.in_gradient:
            return loss * ops.where(fault, float("nan"), 1.0)
        return loss + ops.where(fault, float("inf"), 0.0)


def faulty_model(data, optimizer, in_gradient=True):
    return make_model(optimizer, FaultyLoss(x_token_id(data), in_gradient))


def x_token_id(data):
    """Returns the id that only one batch of an epoch has."""
    counts = np.zeros(30, int)
    for number in range(BATCHES):
        counts[np.unique(data.batch({"epoch": 0, "batch": number})[1])] += 1
    (found,) = np.flatnonzero(counts == 1)
    return found


def place_of_x(data, epoch):
    """Returns the 0-based number of the batch with the x."""
    token_id = x_token_id(data)
    states = [{"epoch": epoch, "batch": number} for number in range(BATCHES)]
    (place,) = [s["batch"] for s in states if token_id in data.batch(s)[1]]
    return place


def fit(model, data, callbacks, **options):
    settings = {"epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(data.dataset, callbacks=callbacks, **settings)


# Stopping.


@pytest.mark.once("torch")
def test_stops_and_saves_the_batch(tmp_path):
    data = make_data()
    epoch = next(e for e in range(1, 99) if place_of_x(data, e) > 0)
    data.start_epoch(epoch)
    place = place_of_x(data, epoch)
    path = tmp_path / f"new/non-finite-{epoch + 1:04}-{place + 1:06}.json"
    model = faulty_model(data, keras.optimizers.SGD())
    stop = NonFiniteLoss(data=data, folder=tmp_path / "new")
    match = (
        f"in epoch {epoch + 1}, batch {place + 1}. The gradients of the previous batch "
        f"may also be the cause. The batch is saved in {path}. Lower"
    )
    with pytest.raises(FloatingPointError, match=re.escape(match)):
        callbacks = [stop, Checkpoints(tmp_path / "run", data)]
        fit(model, data, callbacks, initial_epoch=epoch, epochs=epoch + 1)
    before, saved = json.loads(path.read_text("utf-8"))
    positions = [before["position"], saved["position"]]
    assert positions == [data.state(place - 1), data.state(place)]
    ((_, faulty),) = [pair for pair in saved["lines"] if "x" in "".join(pair)]
    assert faulty.index("x") == len(faulty) - 1
    inputs, targets = data.batch(saved["position"])
    np.testing.assert_array_equal(saved["batch"][1], targets)
    np.testing.assert_array_equal(
        saved["batch"][0]["encoder_token_ids"], inputs["encoder_token_ids"]
    )


class Logs:
    """Passes logs to a callback, in any order."""

    def __init__(self, steps_per_execution=1, **options):
        self.callback = NonFiniteLoss(**options)
        model = keras.Sequential()
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        self.callback.set_model(model)
        self.callback.set_params({})
        self.callback.on_train_begin()
        self.callback.on_epoch_begin(0)

    def end(self, batch, loss):
        self.callback.on_train_batch_end(batch, {"loss": loss})

    def begin(self, batch):
        self.callback.on_train_batch_begin(batch)


@pytest.mark.once("torch")
def test_logs_that_arrive_out_of_order():
    logs = Logs()
    logs.end(0, 1.0)
    logs.end(3, float("nan"))
    logs.end(1, 1.0)
    logs.begin(4)
    logs.end(2, float("nan"))
    with pytest.raises(FloatingPointError, match="epoch 1, batch 3"):
        logs.begin(5)


@pytest.mark.once("torch")
@pytest.mark.parametrize("finite, match", [(3, "5 to 8"), (None, "1 to 4")])
def test_batches_of_one_execution(finite, match):
    logs = Logs(steps_per_execution=4)
    logs.begin(0)
    if finite is not None:
        logs.end(finite, 1.0)
    logs.end(7 if finite else 3, float("inf"))
    with pytest.raises(FloatingPointError, match=f"one of the batches {match}"):
        logs.callback.on_epoch_end(0)


@pytest.mark.once("torch")
def test_batch_numbers_in_a_resumed_epoch():
    logs = Logs()
    logs.callback.set_params({"first_batch": 40})
    logs.end(0, float("nan"))
    with pytest.raises(
        FloatingPointError, match="batch 41[.] The .* previous .* cause[.] Lower"
    ):
        logs.begin(1)


@pytest.mark.once("torch")
@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.LossScaleOptimizer])
def test_only_the_batch_itself_can_be_the_cause(optimizer):
    """The first batch of a run, or an optimizer that skips such updates."""
    logs = Logs()
    if optimizer != "sgd":
        logs.callback.model.optimizer = optimizer(keras.optimizers.SGD())
        logs.callback.on_train_begin()
        logs.end(0, 1.0)
    first = 0 if optimizer == "sgd" else 1
    logs.end(first, float("nan"))
    with pytest.raises(FloatingPointError, match=f"batch {first + 1}[.] Lower"):
        logs.begin(first + 1)


@pytest.mark.once("torch")
def test_a_batch_that_cannot_be_saved(tmp_path):
    (tmp_path / "file").touch()
    data = make_data()
    logs = Logs(data=data, folder=tmp_path / "file/folder")
    logs.end(0, float("nan"))
    with pytest.raises(
        FloatingPointError, match="could not be saved .*Not a directory"
    ):
        logs.begin(1)


# Skipping.


class States(keras.callbacks.Callback):
    """Stores weights and optimizer variables before and after each step."""

    def on_epoch_begin(self, epoch, logs=None):
        model = self.model
        model.optimizer.build(model.trainable_variables)
        self.states = [self.state()]

    def on_train_batch_end(self, batch, logs=None):
        self.states.append(self.state())

    def state(self):
        variables = self.model.weights + self.model.optimizer.variables
        return np.concatenate([ops.convert_to_numpy(v).ravel() for v in variables])


@pytest.mark.parametrize("place, in_gradient", [(0, True), (3, False)])
def test_a_skipped_batch_changes_nothing(place, in_gradient, tmp_path):
    data = make_data()
    epoch = next(e for e in range(99) if place_of_x(data, e) == place)
    model = faulty_model(data, SkipNonFinite(keras.optimizers.Adam(0.1)), in_gradient)
    callbacks = NonFiniteLoss("skip"), LossLog(), States(), Checkpoints(tmp_path, data)
    with pytest.warns(
        UserWarning, match=f"epoch {epoch + 1}, batch {place + 1}. The batch is sk"
    ):
        history = fit(model, data, callbacks, initial_epoch=epoch, epochs=epoch + 1)
    assert history.history["skipped_batches"] == [1]
    assert int(model.optimizer.iterations) == BATCHES - 1
    states = callbacks[2].states
    for number in range(BATCHES):
        same = (states[number] == states[number + 1]).all()
        assert same == (number == place)
    logs = np.array([callbacks[1].logs[epoch, number] for number in range(BATCHES)])
    without = logs[place - 1] if place else np.array([0.0, 1.0])
    np.testing.assert_allclose(logs[place], without, rtol=1e-6)
    np.testing.assert_allclose(history.history["loss"], [logs[-1, 0]], rtol=1e-6)
    assert np.isfinite(logs).all()
    assert float(model.metrics[0].count) == ROWS * (BATCHES - 1)


class FaultyGradient(LabelSmoothedCrossEntropy):
    """Finite, with an infinite gradient for all batches or for the one with the x."""

    def __init__(self, fault_token_id=None):
        super().__init__()
        self.fault_token_id = fault_token_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        loss = super().__call__(y_true, y_pred, sample_weight)
        offset = 0.0
        if self.fault_token_id is not None:
            fault = ops.any(ops.equal(y_true, self.fault_token_id))
            offset = ops.where(fault, 0.0, 1.0)
        zero = ops.sum(y_pred - ops.stop_gradient(y_pred))
        return loss + ops.sqrt(zero + offset) - offset


def test_gradients_that_are_not_finite_are_counted():
    data = make_data()
    optimizer = SkipNonFinite(keras.optimizers.Adam(0.1, gradient_accumulation_steps=2))
    model = make_model(optimizer, FaultyGradient(x_token_id(data)))
    match = f"In epoch 1, 1 of {BATCHES} batches made no update: their gradients were"
    with pytest.warns(UserWarning, match=match):
        history = fit(model, data, [NonFiniteLoss("skip")], epochs=1).history
    assert history["skipped_batches"] == [1]
    assert np.isfinite(history["loss"]).all()


@pytest.mark.once("torch")
def test_too_many_skipped_in_a_row_stop():
    model = make_model(SkipNonFinite(keras.optimizers.SGD()), FaultyGradient())
    skip = NonFiniteLoss("skip", patience=BATCHES + 2)
    match = f"{BATCHES + 2} batches in a row, up to batch 2 of epoch 2, made no update"
    with (
        pytest.warns(UserWarning, match=f"In epoch 1, {BATCHES} of {BATCHES} batches"),
        pytest.raises(FloatingPointError, match=match),
    ):
        fit(model, make_data(), [skip])


def compiled(optimizer, loss, steps_per_execution):
    model = make_model()
    model.compile(
        SkipNonFinite(optimizer), loss, steps_per_execution=steps_per_execution
    )
    return model


@pytest.mark.once
def test_executions_of_several_batches_of_data_of_unknown_size():
    data = make_data()
    unknown = data.dataset.filter(lambda *batch: True)
    model = compiled(keras.optimizers.Adam(), LabelSmoothedCrossEntropy(), 2)
    skip = NonFiniteLoss("skip")
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    with pytest.warns(UserWarning) as warned:  # Keras warns that the data end.
        history = model.fit(unknown, callbacks=[skip], **options).history
    assert history["skipped_batches"] == [0, 0]
    assert not [w for w in warned if "made no update" in str(w.message)]


@pytest.mark.once
def test_one_batch_of_an_execution_does_not_exhaust_the_patience():
    data = make_data()
    loss = FaultyGradient(x_token_id(data))
    model = compiled(keras.optimizers.Adam(), loss, BATCHES)
    skip = NonFiniteLoss("skip", patience=1)
    with pytest.warns(UserWarning, match=f"In epoch 1, 1 of {BATCHES} batches made no"):
        history = fit(model, data, [skip], epochs=1).history
    assert history["skipped_batches"] == [1]


@pytest.mark.once("torch")
def test_batches_skipped_before_a_resume_are_reported(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch) == (1, 4):
                raise KeyboardInterrupt

    def run(*others):
        data = make_data()
        optimizer = SkipNonFinite(keras.optimizers.Adam(0.1))
        model = make_model(optimizer, FaultyGradient(x_token_id(data)))
        checkpoints = Checkpoints(tmp_path, data, save_every=1)
        fit(model, data, [NonFiniteLoss("skip"), *others, checkpoints], epochs=2)

    assert place_of_x(make_data(), 1) < 4
    match = f"1 of {BATCHES} batches made no"
    with (
        pytest.warns(UserWarning, match=f"In epoch 1, {match}"),
        pytest.raises(KeyboardInterrupt),
    ):
        run(Stop())
    with pytest.warns(UserWarning, match=f"In epoch 2, {match}"):
        run()


@pytest.mark.once("torch")
def test_a_saved_model_has_its_optimizer(tmp_path):
    model = make_network()
    compile_model(model, SkipNonFinite(keras.optimizers.Adam(0.3)), loss="mse")
    model.optimizer.learning_rate = 0.1
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(17)
    model.save(tmp_path / "model.keras")
    optimizer = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert isinstance(optimizer, SkipNonFinite)
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.Adam)
    assert int(optimizer.iterations) == 17
    np.testing.assert_allclose(float(optimizer.learning_rate), 0.1, rtol=1e-6)


@pytest.mark.once("torch")
def test_skipping_requires_skip_non_finite():
    sgd = keras.optimizers.SGD()
    for optimizer in (sgd, keras.optimizers.LossScaleOptimizer(sgd)):
        name = type(optimizer).__name__
        with pytest.raises(ValueError, match=f"can skip updates; .* optimizer {name}"):
            fit(make_model(optimizer), make_data(), [NonFiniteLoss("skip")])


@pytest.mark.once("torch")
def test_invalid_arguments():
    with pytest.raises(ValueError, match="must be 'stop' or 'skip'; .*='go'"):
        NonFiniteLoss("go")
    with pytest.raises(ValueError, match="`patience` must be an int .*=0`"):
        NonFiniteLoss(patience=0)


class Lookup(TokenTrainer):
    """Looks logits up: its steps compile in no time."""

    pad_token_id = 0

    def __init__(self):
        super().__init__(dtype="mixed_float16")
        self.logits = keras.layers.Embedding(13, 13, dtype=self.dtype_policy)
        self.logits.build()

    def call(self, inputs):
        return self.logits(inputs)


@pytest.mark.parametrize("in_gradient", [False, True])
def test_float16_scales_the_loss_inside(in_gradient):
    """A non-finite loss changes nothing; Keras's loss scaling checks gradients only."""
    model = Lookup()
    model.compile(SkipNonFinite(keras.optimizers.Adam(0.1)), FaultyLoss(7, in_gradient))
    assert has_scaling_inside(model.optimizer)
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.Adam)
    before, inputs = model.get_weights()[0], np.array([[5, 3]])
    model.train_on_batch(inputs, np.array([[7, 3]]))
    assert np.array_equal(model.get_weights()[0], before)
    assert int(model.optimizer.iterations) == 0
    model.train_on_batch(inputs, np.array([[5, 3]]))
    assert not np.array_equal(model.get_weights()[0], before)
    assert int(model.optimizer.iterations) == 1
    config = keras.optimizers.serialize(model.optimizer)
    assert has_scaling_inside(keras.optimizers.deserialize(config))


def has_scaling_inside(optimizer):
    inner = optimizer.get_config()["inner_optimizer"]
    return inner["class_name"] == "LossScaleOptimizer"


@pytest.mark.once("torch")
def test_moving_averages_with_loss_scaling():
    inner = keras.optimizers.Adam(0.1, use_ema=True)
    optimizer = SkipNonFinite(keras.optimizers.LossScaleOptimizer(inner))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    data, swap = (np.ones((4, 3)), np.ones((4, 2))), keras.callbacks.SwapEMAWeights()
    logs = model.fit(*data, validation_data=data, callbacks=[swap], verbose=0).history
    assert np.isfinite(logs["val_loss"]).all()


@pytest.mark.once("torch")
def test_fit_warns_once(recwarn):
    data = make_data()
    model = faulty_model(data, keras.optimizers.Adam(1e-3))
    model.fit(data.dataset, epochs=3, shuffle=False, verbose=0)
    [warning] = [w for w in recwarn if "NaN or infinite in epoch" in str(w.message)]
    assert "in epoch 1. Training continues" in str(warning.message)
