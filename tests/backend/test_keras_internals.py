import types

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.backend.keras_internals import (
    build_from_dataset,
    callback_state,
    count_steps,
    finalize_averages,
    flatten_layers,
    learning_rate_schedule,
)
from keras_transformer.training.checkpoints import checkpoints

X = np.arange(12.0, dtype="float32").reshape(4, 3)
Y = np.ones((4, 1), "float32")


def make_model(optimizer=None):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.01), "mse")
    return model


@pytest.mark.once("torch")
def test_layers_within_layers_are_found_once():
    class Outer(keras.layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.again = inner, inner
            self.pair = keras.layers.Dense(1), [keras.layers.Dense(2)]
            self.by_name = {"a": {"b": keras.layers.Dense(3)}}

    inner = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5)])
    outer = Outer(inner)
    model = keras.Sequential([outer])
    first, (second,) = outer.pair
    expected = [model, outer, inner, *inner.layers, first, second]
    expected += [outer.by_name["a"]["b"]]
    found = flatten_layers(model)
    assert len(found) == len(expected)
    assert {id(layer) for layer in found} == {id(layer) for layer in expected}


def test_a_model_is_built_by_fit_without_the_private_method():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    build_from_dataset(types.SimpleNamespace(compiled=True), data)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    build_from_dataset(model, data)
    assert model.built == (keras.backend.backend() != "tensorflow")
    model.fit(data, shuffle=False, verbose=0)
    assert model.built


def test_steps_are_batches_with_gradient_accumulation():
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
    make_model(optimizer).fit(X, Y, batch_size=1, epochs=2, verbose=0)
    assert int(keras.ops.convert_to_numpy(count_steps(optimizer))) == 8
    assert int(keras.ops.convert_to_numpy(optimizer.iterations)) == 4


def test_schedules_are_found_with_and_without_the_private_attribute():
    schedule = kt.training.WarmupInverseSquareRoot(1e-3, warmup_steps=5)
    optimizer = keras.optimizers.SGD(schedule)
    assert learning_rate_schedule(optimizer) is schedule
    public = types.SimpleNamespace(get_config=optimizer.get_config)
    copy = learning_rate_schedule(public)
    assert copy is not schedule and copy.get_config() == schedule.get_config()
    constant = keras.optimizers.SGD(0.5)
    public = types.SimpleNamespace(get_config=constant.get_config)
    assert learning_rate_schedule(constant) is None
    assert learning_rate_schedule(public) is None


@pytest.mark.once("torch")
def test_a_missing_attribute_of_a_callback_is_left_out():
    callback = keras.callbacks.ModelCheckpoint("a.keras")
    names = ("best", "_batches_seen_since_last_saving")
    assert callback_state(callback) == names
    del callback._batches_seen_since_last_saving
    with pytest.warns(UserWarning, match="has no `ModelCheckpoint._batches_seen"):
        assert callback_state(callback) == ("best",)
    assert callback_state(keras.callbacks.History()) == ()


def after_an_epoch_with_averages():
    optimizer = keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5)
    model = make_model(optimizer)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    swap.set_model(model)
    swap.set_params({"epochs": 9})
    for _ in range(3):
        model.train_on_batch(X, Y)
    swap.on_epoch_end(0)  # The averages are in the model now, and the weights in them.
    return model, swap


def test_averages_are_final():
    model, swap = after_an_epoch_with_averages()
    averages = model.get_weights()
    finalize_averages(swap)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    for found, expected in zip(model.get_weights(), averages, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert swap.params == {"epochs": 9}
    other, _ = after_an_epoch_with_averages()
    other.optimizer.finalize_variable_values(other.trainable_variables)
    assert np.abs(other.get_weights()[0] - averages[0]).max() > 1e-4


class _Stop(Exception):
    pass


class _StopAt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise _Stop


def test_a_run_resumes_without_the_private_attribute(tmp_path, monkeypatch):
    """`fit` then begins where its argument says, which must be the right epoch."""
    options = {"epochs": 3, "shuffle": False, "verbose": 0}

    def fit(folder, *others, **more):
        model = make_model()
        callbacks = [*others, kt.Checkpoints(folder, callbacks=[])]
        model.fit(X, Y, callbacks=callbacks, **options, **more)
        return model.get_weights()

    expected = fit(tmp_path / "whole")
    with pytest.raises(_Stop):
        fit(tmp_path / "stopped", _StopAt())
    monkeypatch.setattr(checkpoints, "set_initial_epoch", lambda model, epoch: None)
    with pytest.raises(ValueError, match="Call `fit` with `initial_epoch=1`"):
        fit(tmp_path / "stopped")
    found = fit(tmp_path / "stopped", initial_epoch=1)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
