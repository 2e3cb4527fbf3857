import json

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import get_mask, gradients, to_numpy, with_mask

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import Dropout

SHAPE = 101, 103, 7
ONES = np.ones(SHAPE, "float32")
DTYPES = ["float32", "float16", "bfloat16"]


def kept(rate=0.5, shape=SHAPE, seed=3, **arguments):
    """Returns which elements are kept, as a boolean array."""
    layer = Dropout(rate, seed=seed, **arguments)
    return to_numpy(layer(np.ones(shape, "float32"), training=True)) != 0


def assert_is_share(decisions, share):
    """Within 5 standard deviations of independent decisions."""
    deviation = np.sqrt(share * (1 - share) / decisions.size)
    assert abs(decisions.mean() - share) < 5 * deviation


class TestDecisions:
    @pytest.mark.parametrize("rate", [0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999])
    def test_have_the_rate(self, rate):
        assert_is_share(kept(rate), 1 - rate)

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_have_the_rate_everywhere(self, axis):
        share = np.moveaxis(kept(0.3, (211, 223, 5)), axis, 0)
        for decisions in share:
            assert_is_share(decisions, 0.7)

    @pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 7, 8, 16, 7 * 103])
    def test_are_independent_of_their_neighbours(self, distance):
        """A word of random bits contains two decisions."""
        row = kept(0.3).ravel()
        together = row[distance:] & row[:-distance]
        # Overlapping pairs vary a little more than independent ones.
        deviation = np.sqrt(0.49 * 0.51 * 3 / together.size)
        assert abs(together.mean() - 0.49) < 5 * deviation

    @pytest.mark.parametrize("place", range(4))
    def test_have_the_rate_at_every_place_in_a_word(self, place):
        assert_is_share(kept(0.3).ravel()[place::4], 0.7)

    def test_differ_from_call_to_call(self):
        layer = Dropout(0.5, seed=3)
        first, second = (to_numpy(layer(ONES, training=True)) != 0 for _ in range(2))
        assert_is_share(first == second, 0.5)

    def test_are_settled_by_the_seed(self):
        np.testing.assert_array_equal(kept(seed=3), kept(seed=3))
        assert_is_share(kept(seed=3) == kept(seed=5), 0.5)

    def test_are_settled_by_the_seed_of_the_session(self):
        first, same, other = (
            (keras.utils.set_random_seed(seed), kept(seed=None))[1]
            for seed in (11, 11, 13)
        )
        np.testing.assert_array_equal(first, same)
        assert_is_share(first == other, 0.5)

    @pytest.mark.parametrize("shape", [(1,), (3,), (5, 1), (2, 3, 5, 7, 11), (0, 3)])
    def test_of_any_shape(self, shape):
        output = Dropout(0.5, seed=1)(np.ones(shape, "float32"), training=True)
        assert tuple(output.shape) == shape
        assert set(np.unique(to_numpy(output))) <= {0.0, 2.0}


class TestValues:
    @pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
    def test_are_scaled_or_zero(self, rate):
        inputs = np.random.default_rng(2).normal(size=(53, 59)).astype("float32")
        output = to_numpy(Dropout(rate, seed=1)(inputs, training=True))
        scaled = output != 0
        assert_is_share(scaled, 1 - rate)
        np.testing.assert_allclose(output[scaled], inputs[scaled] / (1 - rate), 1e-6)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_keep_their_dtype(self, dtype):
        inputs = ops.cast(ONES, dtype)
        for training in (False, True):
            output = Dropout(0.5, dtype=dtype)(inputs, training=training)
            assert keras.backend.standardize_dtype(output.dtype) == dtype
        assert set(np.unique(to_numpy(output))) == {0.0, 2.0}

    def test_drop_what_is_large(self):
        output = to_numpy(Dropout(0.5, seed=1)(ONES * 1e38, training=True))
        assert_is_share(output == 0, 0.5)

    @pytest.mark.parametrize("value", [np.inf, np.nan])
    def test_do_not_hide_what_is_not_finite(self, value):
        output = to_numpy(Dropout(0.5, seed=1)(ONES * value, training=True))
        assert not np.isfinite(output).any()

    @pytest.mark.parametrize("training", [False, None])
    def test_are_the_inputs_outside_of_training(self, training):
        inputs = ops.convert_to_tensor(ONES)
        output = Dropout(0.5)(inputs, training=training)
        np.testing.assert_array_equal(to_numpy(output), ONES)

    def test_of_a_rate_that_rounds_to_one(self):
        assert kept(0.999999).mean() < 1e-4

    def test_of_rate_zero_and_one(self):
        assert (to_numpy(Dropout(0.0)(ONES, training=True)) == 1).all()
        assert (to_numpy(Dropout(1.0)(ONES * np.inf, training=True)) == 0).all()
        assert Dropout(0.0).variables == []

    def test_keep_the_mask(self):
        mask = np.tri(3, 5, dtype=bool)
        inputs = with_mask(np.ones((3, 5, 7), "float32"), mask)
        output = Dropout(0.5)(inputs, training=True)
        np.testing.assert_array_equal(get_mask(output), mask)


class TestNoiseShape:
    @pytest.mark.parametrize(
        "noise_shape", [(None, 1, None), (1, None, 1), (None, 1, 1), (101, 1, 7)]
    )
    def test_shares_decisions(self, noise_shape):
        decisions = kept(0.4, noise_shape=noise_shape)
        shared = tuple(axis for axis in range(3) if noise_shape[axis] == 1)
        own = decisions.any(axis=shared, keepdims=True)
        assert (decisions == own).all()
        assert_is_share(own, 0.6)

    def test_is_that_of_the_last_axes(self):
        decisions = kept(0.4, shape=(3, 5, 211), noise_shape=(None, 211))
        assert (decisions == decisions[0]).all()
        assert_is_share(decisions[0], 0.6)


def test_gradients_are_the_decisions():
    layer, rng = Dropout(0.3, seed=1), np.random.default_rng(2)
    inputs, weights = rng.normal(size=(2, 11, 13)).astype("float32")

    def dropped(x):
        with keras.StatelessScope():  # which the seed comes out of unchanged
            return layer(x, training=True)

    (gradient,) = gradients(
        lambda x: ops.sum(ops.multiply(dropped(x), weights)), inputs
    )
    decisions = to_numpy(dropped(inputs)) != 0
    assert decisions.any() and not decisions.all()
    np.testing.assert_allclose(gradient, decisions * weights / 0.7, rtol=1e-5)


class AlwaysOn(keras.layers.Layer):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def call(self, inputs):
        return self.dropout(inputs, training=True)


class TestInAModel:
    each_jit = pytest.mark.parametrize(
        "jit_compile", [False] if keras.backend.backend() == "torch" else [False, True]
    )

    @each_jit
    def test_every_training_step_decides_anew(self, jit_compile):
        """Each step adds the dropped-out value of 1 to each weight."""
        inputs, dropout = keras.Input((997,)), Dropout(0.5, seed=3)
        weigh = keras.layers.EinsumDense("bi,i->bi", 997, kernel_initializer="zeros")
        model = keras.Model(inputs, weigh(dropout(inputs)))
        model.compile(
            optimizer=keras.optimizers.SGD(1.0),
            loss=lambda target, output: -ops.sum(output, axis=-1),
            jit_compile=jit_compile,
        )
        ones = np.ones((2, 997), "float32")
        model.fit(ones, ones, batch_size=1, verbose=0)
        (weights,) = weigh.get_weights()
        assert set(np.unique(weights)) == {0.0, 2.0, 4.0}
        assert_is_share(weights == 2, 0.5)
        state = to_numpy(dropout.seed_generator.state)
        model.predict(ones, verbose=0)
        assert state.tolist() == [3, 2]
        np.testing.assert_array_equal(to_numpy(dropout.seed_generator.state), state)

    @each_jit
    def test_of_unknown_sizes(self, jit_compile):
        inputs = keras.Input((None, 7))
        outputs = [
            AlwaysOn(Dropout(0.5))(inputs),
            AlwaysOn(Dropout(0.5, noise_shape=(None, None, 1)))(inputs),
        ]
        assert [output.shape for output in outputs] == [(None, None, 7)] * 2
        model = keras.Model(inputs, outputs)
        model.compile(jit_compile=jit_compile)
        for shape in ((31, 101, 7), (3, 5, 7)):
            output, shared = model.predict(np.ones(shape, "float32"), verbose=0)
            assert output.shape == shared.shape == shape
            assert set(np.unique(output)) == set(np.unique(shared)) == {0.0, 2.0}
            assert (shared == shared[..., :1]).all()

    def test_compiled_without_training(self):
        layer = Dropout(0.5)
        compiled = compile_function(lambda x: layer(x), layer)
        output = compiled(ops.convert_to_tensor(ONES))
        np.testing.assert_array_equal(to_numpy(output), ONES)


class TestIsADropInForKeras:
    ARGUMENTS = {"rate": 0.3, "noise_shape": (None, 1, 5), "seed": 17}

    def test_constructor_and_config(self):
        ours = Dropout(**self.ARGUMENTS, name="d", dtype="mixed_float16")
        theirs = keras.layers.Dropout(**self.ARGUMENTS, name="d", dtype="mixed_float16")
        assert isinstance(ours, keras.layers.Dropout)
        assert ours.get_config() == theirs.get_config()
        assert Dropout.from_config(theirs.get_config()).rate == 0.3
        assert len(ours.variables) == len(theirs.variables) == 1

    def test_is_registered(self):
        layer = Dropout(**self.ARGUMENTS, name="d")
        name = "keras_transformer>Dropout"
        assert keras.saving.get_registered_name(Dropout) == name
        stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        restored = keras.saving.deserialize_keras_object(stored)
        assert type(restored) is Dropout
        assert restored.get_config() == layer.get_config()

    @pytest.mark.parametrize("rate", [-0.1, 1.1])
    def test_a_rate_out_of_range_is_named(self, rate):
        with pytest.raises(ValueError, match=f"`rate`.* Received: rate={rate}"):
            Dropout(rate)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch.compile")
def test_torch_compile_draws_the_same_numbers():
    import torch

    x = torch.ones(3, 5, device=ops.ones(()).device)
    layers = [Dropout(0.5, seed=7), Dropout(0.5, seed=7)]
    eager = [to_numpy(layers[0](x, training=True)) for _ in range(3)]
    # Without a code generator: the traces are the same.
    compiled = torch.compile(lambda x: layers[1](x, training=True), backend="eager")
    outputs = [to_numpy(compiled(x)) for _ in range(3)]
    np.testing.assert_array_equal(outputs, eager)
    assert not np.array_equal(eager[0], eager[1])  # The seed advances.
