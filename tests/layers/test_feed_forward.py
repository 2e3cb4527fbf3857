import keras
import numpy as np
import pytest
import reference
from layer_contract import check_layer, to_numpy, with_random_weights

from keras_transformer.layers import FeedForward

RNG = np.random.default_rng(5)
INPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")


def test_contract():
    shapes = [(5, 7), (7,), (7, 5), (5,)]
    check_layer(FeedForward, {"intermediate_dim": 7}, [INPUTS], shapes)


def test_by_hand():
    layer = FeedForward(intermediate_dim=2)
    layer.build((None, None, 1))
    weights = [[[1.0, -1.0]], [0.5, 0.0], [[2.0], [10.0]], [0.25]]
    layer.set_weights([np.array(weight) for weight in weights])
    output = to_numpy(layer(np.array([[[3.0], [-2.0]]], "float32")))
    assert output.tolist() == [[[2 * 3.5 + 0.25], [10 * 2.0 + 0.25]]]


@pytest.mark.parametrize("shape", [(1, 1, 5), (2, 3, 5)])
def test_equals_the_reference(shape):
    inputs = RNG.normal(size=shape).astype("float32")
    layer = FeedForward(intermediate_dim=7)
    layer.build(inputs.shape)
    weights = with_random_weights(layer).get_weights()
    expected = reference.feed_forward(weights, inputs)
    np.testing.assert_allclose(to_numpy(layer(inputs)), expected, atol=1e-5)


def test_options_reach_both_dense_layers():
    layer = FeedForward(
        intermediate_dim=7,
        activation="gelu",
        kernel_initializer="ones",
        bias_initializer=keras.initializers.Constant(0.5),
    )
    output = to_numpy(layer(INPUTS))
    kernel_1, bias_1, kernel_2, bias_2 = layer.get_weights()
    assert (kernel_1 == 1).all() and (kernel_2 == 1).all()
    assert (bias_1 == 0.5).all() and (bias_2 == 0.5).all()
    inner = keras.activations.gelu(INPUTS.sum(-1, keepdims=True) + 0.5)
    expected = np.broadcast_to(7 * to_numpy(inner) + 0.5, INPUTS.shape)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_kernels_start_out_different():
    layer = FeedForward(
        intermediate_dim=5, kernel_initializer=keras.initializers.GlorotUniform(seed=3)
    )
    layer.build((None, None, 5))
    unseeded = FeedForward(intermediate_dim=5)
    unseeded.build((None, None, 5))
    kernel_1, _, kernel_2, _ = unseeded.get_weights()
    assert not np.array_equal(kernel_1, kernel_2)
    assert np.array_equal(*layer.get_weights()[::2])
