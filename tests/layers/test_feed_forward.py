import math

import keras
import numpy as np
import pytest
from layer_contract import check_layer, to_numpy, with_random_weights

from keras_transformer.layers import FeedForward

RNG = np.random.default_rng(5)
INPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")

SIGMOID = np.vectorize(lambda x: 1 / (1 + math.exp(-x)))
ACTIVATIONS = {
    "relu": np.vectorize(lambda x: max(x, 0.0)),
    "gelu": np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    "silu": lambda x: x * SIGMOID(x),
}


def feed_forward(**arguments):
    layer = FeedForward(intermediate_dim=7, **arguments)
    layer.build(INPUTS.shape)
    return with_random_weights(layer)


def test_contract():
    shapes = [(5, 7), (7,), (7, 5), (5,)]
    arguments = {"intermediate_dim": 7, "dropout": 0.2}
    check_layer(FeedForward, arguments, [INPUTS], shapes)


def test_contract_with_a_gate():
    arguments = {
        "intermediate_dim": 7,
        "activation": "silu",
        "gated": True,
        "use_bias": False,
    }
    shapes = [(5, 7), (5, 7), (7, 5)]
    check_layer(FeedForward, arguments, [INPUTS], shapes)


def test_by_hand():
    layer = FeedForward(intermediate_dim=2)
    layer.build((None, None, 1))
    weights = [[[1.0, -1.0]], [0.5, 0.0], [[2.0], [10.0]], [0.25]]
    layer.set_weights([np.array(weight) for weight in weights])
    output = to_numpy(layer(np.array([[[3.0], [-2.0]]], "float32")))
    assert output.tolist() == [[[2 * 3.5 + 0.25], [10 * 2.0 + 0.25]]]


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


def gated_by_hand(weights, activation, inputs=INPUTS):
    """Shazeer (2020), section 2, in float64."""
    kernel, bias, gate_kernel, gate_bias, out_kernel, out_bias = (
        np.asarray(weight, "float64") for weight in weights
    )
    gate = ACTIVATIONS[activation](inputs @ gate_kernel + gate_bias)
    return gate * (inputs @ kernel + bias) @ out_kernel + out_bias


@pytest.mark.parametrize(
    ("activation", "use_bias"), [("gelu", False), ("relu", True), ("silu", True)]
)
def test_a_gate_multiplies_the_inner_layer(activation, use_bias):
    layer = feed_forward(gated=True, activation=activation, use_bias=use_bias)
    weights = layer.get_weights()
    assert [w.path.split("/", 1)[1] for w in layer.weights[:: 1 + use_bias]] == [
        "intermediate/kernel",
        "gate/kernel",
        "output/kernel",
    ]
    if not use_bias:
        weights = [part for kernel in weights for part in (kernel, np.zeros(()))]
    expected = gated_by_hand(weights, activation)
    np.testing.assert_allclose(to_numpy(layer(INPUTS)), expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_equals_torch(activation):
    import torch

    layer = feed_forward(activation=activation)
    kernel_1, bias_1, kernel_2, bias_2 = map(torch.tensor, layer.get_weights())
    functions = torch.nn.functional
    inner = functions.linear(torch.tensor(INPUTS), kernel_1.T, bias_1)
    inner = getattr(functions, activation)(inner)
    expected = functions.linear(inner, kernel_2.T, bias_2).numpy()
    np.testing.assert_allclose(to_numpy(layer(INPUTS)), expected, atol=1e-5)


def test_dropout_is_for_the_inner_layer_in_training_alone():
    layer = FeedForward(
        100, dropout=0.5, gated=True, kernel_initializer="ones", use_bias=False
    )
    inputs = np.ones((50, 1, 1), "float32")
    assert (to_numpy(layer(inputs)) == 100).all()
    kept = to_numpy(layer(inputs, training=True)) / 2
    assert (kept == kept.round()).all() and len(np.unique(kept)) > 5
    assert 45 < kept.mean() < 55


@pytest.mark.once("torch")
def test_an_argument_out_of_range_is_named():
    message = r"`dropout` must be in \[0, 1\); received `dropout=1.0`"
    with pytest.raises(ValueError, match=message):
        FeedForward(7, dropout=1.0)
    with pytest.raises(ValueError, match="`intermediate_dim` must be an int "):
        FeedForward(0)
