import random
import re

import keras
import numpy as np
import pytest

from keras_transformer.backend import random_state
from keras_transformer.training.checkpoints import callback_state, run_state

pytestmark = pytest.mark.once("torch")


def make_model(units=3, name=None):
    layers = [keras.layers.Dense(units), keras.layers.Dropout(0.5, seed=1)]
    return keras.Sequential([keras.Input((2,)), *layers], name=name)


# Variables.


def test_variables_round_trip():
    model, other = make_model(), make_model()
    model.set_weights([np.full((2, 3), 0.1), np.arange(3)])
    model.layers[-1].seed_generator.state.assign([17, 5])
    saved = run_state.save_variables(model.variables)
    run_state.restore_variables(other.variables, saved, "here")
    assert len(saved) == 3
    for a, b in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_saved_values_are_copies():
    model = make_model()
    saved = run_state.save_variables(model.variables)
    before = [entry["value"].copy() for entry in saved]
    model.set_weights([weight + 1 for weight in model.get_weights()])
    for entry, value in zip(saved, before, strict=True):
        np.testing.assert_array_equal(entry["value"], value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_kept(dtype):
    variables = [keras.Variable([0.1, 0.2], dtype=dtype) for _ in range(2)]
    saved = run_state.save_variables(variables[:1])
    assert saved[0]["value"].dtype.name == dtype
    variables[1].assign([0.0, 0.0])
    run_state.restore_variables(variables[1:], saved, "here")
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    np.testing.assert_array_equal(*values, strict=True)


def test_automatic_numbers_in_names_are_ignored():
    first, second = make_model(), make_model()
    assert first.variables[0].path != second.variables[0].path
    run_state.check_same(first.variables, run_state.save_variables(second.variables), 0)


@pytest.mark.parametrize(
    "other, difference",
    [
        ({"units": 5}, "dense/kernel (2, 5) in place of sequential/dense/kernel"),
        ({"name": "mine"}, "has mine/dense/kernel (2, 3) in place of sequential"),
    ],
)
def test_other_variables(other, difference):
    saved = run_state.save_variables(make_model(**other).variables)
    with pytest.raises(ValueError, match=f"received here, .*{re.escape(difference)}"):
        run_state.restore_variables(make_model().variables, saved, "here")


def test_fewer_and_more_variables():
    variables = make_model().variables
    saved = run_state.save_variables(variables)
    with pytest.raises(ValueError, match="has nothing in place of seed"):
        run_state.check_same(variables, saved[:2], "here")
    with pytest.raises(ValueError, match="has seed.* in place of nothing"):
        run_state.check_same(variables[:2], saved, "here")


@pytest.mark.parametrize("value, finite", [(1.0, True), (np.nan, False), (np.inf, 0)])
def test_all_finite(value, finite):
    values = np.ones(3, "float32"), np.array([1.0, value], "float32")
    saved = [{"name": "a", "value": value} for value in values]
    assert run_state.all_finite(saved) == finite
    assert run_state.all_finite(run_state.save_variables(make_model().variables))


# Callbacks.


class Counter(keras.callbacks.Callback):
    checkpointed_attributes = ("count",)

    def __init__(self, count):
        super().__init__()
        self.count = count


@pytest.mark.once("torch")
def test_state_of_callbacks_round_trip():
    stopping = keras.callbacks.EarlyStopping("loss", patience=9, min_delta=0.1)
    stopping.on_train_begin()
    stopping.best, stopping.wait, stopping.best_weights = 0.3, 4, [np.ones(2)]
    saved = callback_state.save_callbacks(
        [Counter(1), keras.callbacks.TerminateOnNaN(), stopping, Counter(2)]
    )
    assert [entry["class"] for entry in saved] == [
        "Counter",
        "EarlyStopping",
        "Counter",
    ]
    others = [
        keras.callbacks.EarlyStopping("loss", patience=5, min_delta=0.2),
        keras.callbacks.ReduceLROnPlateau("loss"),
        *map(Counter, (7, 8, 9)),
    ]
    callback_state.restore_callbacks(others, saved)
    assert (others[0].best, others[0].wait, others[0].patience) == (0.3, 4, 5)
    assert others[0].min_delta == 0.2
    np.testing.assert_array_equal(others[0].best_weights, [[1, 1]])
    assert others[1].wait == 0
    assert [counter.count for counter in others[2:]] == [1, 2, 9]


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "kind", [keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau]
)
def test_attributes_that_keras_resets_are_saved(kind):
    callback = kind("loss")
    before = dict.fromkeys(vars(callback), "of the run before")
    vars(callback).update(before)
    callback.on_train_begin()
    reset = {
        name for name, value in vars(callback).items() if value != before.get(name)
    }
    assert reset == set(callback_state.attributes_to_save(callback))


@pytest.mark.once("torch")
def test_saved_attributes_exist():
    for callback in (
        keras.callbacks.ModelCheckpoint("a.keras"),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.TensorBoard("logs"),
    ):
        names = callback_state.attributes_to_save(callback)
        assert names and set(names) <= vars(callback).keys()


@pytest.mark.once("torch")
@pytest.mark.parametrize("stopped_epoch, wait, over", [(4, 3, 1), (4, 2, 0), (0, 3, 0)])
def test_early_stopping_with_a_greater_patience_continues(stopped_epoch, wait, over):
    stopping = keras.callbacks.EarlyStopping(patience=3)
    stopping.stopped_epoch, stopping.wait = stopped_epoch, wait
    assert callback_state.stopped_early([Counter(1), stopping]) == over


# History and random states.


@pytest.mark.once("torch")
def test_history_has_the_epoch_that_ends():
    model = make_model()
    model.history = keras.callbacks.History()
    model.history.epoch, model.history.history = [0, 1], {"loss": [3.0, 2.0]}
    assert run_state.save_history(model)["epoch"] == [0, 1]
    saved = run_state.save_history(model, 2, {"loss": 1.0, "val_loss": 5.0})
    history = {"loss": [3.0, 2.0, 1.0], "val_loss": [5.0]}
    assert saved == {"epoch": [0, 1, 2], "history": history}
    assert run_state.save_history(model, 1, {"loss": 9.0})["history"]["loss"] == [3, 2]
    assert model.history.history == {"loss": [3.0, 2.0]}


def test_random_generators_are_restored():
    torch = pytest.importorskip("torch")

    def draw():
        python = random.random(), random.gauss(0, 1)
        return *python, np.random.normal(), np.random.rand(), float(torch.rand(()))

    random.gauss(0, 1), np.random.normal()  # They store a second number.
    state = random_state.save_random_state()
    drawn = draw()
    assert set(drawn) & set(draw()) == set()
    random_state.restore_random_state(state)
    assert draw() == drawn
