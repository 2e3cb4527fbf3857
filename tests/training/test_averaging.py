import keras
import numpy as np
import pytest

from keras_transformer import average_checkpoints
from keras_transformer.training.checkpoints import run_state
from keras_transformer.training.checkpoints.storage import write_checkpoint
from keras_transformer_runtime.runs.run_position import RunPosition

EPOCHS = 4


class Counting(keras.layers.Layer):
    """A float weight, an integer one, and a random generator."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(3, 5), name="kernel")
        self.count = self.add_weight(
            shape=(), dtype="int32", name="count", trainable=False
        )
        self.seed_generator = keras.random.SeedGenerator(1)
        self.built = True


def make_model():
    layers = [keras.Input((2,)), keras.layers.Dense(3), Counting()]
    model = keras.Sequential(layers)
    model.build((None, 2))
    return model


@pytest.fixture
def weights(tmp_path):
    """Saves random weights as a run of four epochs would; returns them."""
    rng = np.random.default_rng(0)
    model, weights = make_model(), []
    for epoch in range(1, EPOCHS + 1):
        values = [rng.normal(10, 1, w.shape).astype(w.dtype) for w in model.weights]
        model.set_weights(values)
        model.layers[-1].seed_generator.state.assign([epoch, epoch])
        state = {"model": run_state.save_variables(model.variables), "optimizer": []}
        write_checkpoint(tmp_path / RunPosition(epoch).file_name, state)
        write_checkpoint(tmp_path / RunPosition(epoch, 7).file_name, {"model": None})
        weights.append(values)
    return weights


@pytest.mark.parametrize("last", [1, 9])
def test_mean_of_the_last(weights, tmp_path, last):
    model = make_model()
    averaged = average_checkpoints(model, tmp_path, last)
    names = [f"epoch-{epoch:04}.npz" for epoch in (4, 3, 2, 1)]
    assert averaged == [tmp_path / name for name in names[:last]]
    for number, weight in enumerate(model.get_weights()):
        values = np.array([each[number] for each in weights[-last:]])
        expected = values.astype("float64").mean(axis=0).astype("float32")
        if weight.dtype == "int32":
            expected = values[-1]
        np.testing.assert_array_equal(weight, expected)
    np.testing.assert_array_equal(model.layers[-1].seed_generator.state, [1, 0])


def test_half_types_are_averaged_in_float64(tmp_path):
    variable = keras.Variable(0.0, dtype="bfloat16", trainable=False, name="a")
    values = [1.0, 1.0078125, 1.0078125]  # neighbours in bfloat16
    for epoch, value in enumerate(values, start=1):
        variable.assign(value)
        state = {"model": run_state.save_variables([variable])}
        write_checkpoint(tmp_path / RunPosition(epoch).file_name, state)

    class Model:
        variables = weights = [variable]

    average_checkpoints(Model, tmp_path)
    assert float(variable) == 1.0078125


@pytest.mark.once("torch")
def test_a_model_with_other_dropout(weights, tmp_path):
    """Dropout layers have random generators, which are not averaged."""
    layers = [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, Counting()])
    model.build((None, 2))
    average_checkpoints(model, tmp_path, last=1)
    for ours, theirs in zip(model.get_weights(), weights[-1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.once("torch")
def test_a_damaged_file_is_skipped(weights, tmp_path):
    (tmp_path / "epoch-0003.npz").write_bytes(b"PK")
    with pytest.warns(UserWarning, match="epoch-0003.npz is damaged"):
        averaged = average_checkpoints(make_model(), tmp_path, last=2)
    assert [path.name for path in averaged] == ["epoch-0004.npz", "epoch-0002.npz"]


@pytest.mark.once("torch")
def test_another_model(weights, tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(7)])
    before = model.get_weights()
    with pytest.raises(
        ValueError, match=r"epoch-0004.npz, which has .*\(2, 3\) in place"
    ):
        average_checkpoints(model, tmp_path)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.once("torch")
def test_no_checkpoint_and_invalid_arguments(tmp_path):
    with pytest.raises(ValueError, match="must have a checkpoint at the end of an epo"):
        average_checkpoints(make_model(), tmp_path)
    with pytest.raises(ValueError, match="`last` must be an int .*`last=0`"):
        average_checkpoints(make_model(), tmp_path, last=0)


@pytest.mark.once("torch")
def test_fewer_checkpoints_than_epochs(weights, tmp_path):
    (tmp_path / "epoch-0002.npz").unlink()
    match = "`last=9` requests the last 4 epochs; .* has checkpoints of 3 of them"
    with pytest.warns(UserWarning, match=match):
        averaged = average_checkpoints(make_model(), tmp_path, last=9)
    assert len(averaged) == 3
