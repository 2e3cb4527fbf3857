import numpy as np
import pytest
import reference
from layer_contract import check_layer, to_numpy, with_random_weights

from keras_transformer.layers import Residual

RNG = np.random.default_rng(6)
INPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")
OUTPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")


@pytest.mark.parametrize("normalize_first", [False, True])
def test_contract(normalize_first):
    arguments = {
        "dropout": 0.3,
        "layer_norm_epsilon": 1e-3,
        "normalize_first": normalize_first,
    }
    check_layer(Residual, arguments, [INPUTS, OUTPUTS], [(5,), (5,)])


def test_by_hand():
    inputs, outputs = np.array([[[1.0, 2.0]]]), np.array([[[0.0, 5.0]]])
    post = Residual(layer_norm_epsilon=0.0)
    normed = [[[-1.0, 1.0]]]
    np.testing.assert_allclose(to_numpy(post(inputs, outputs)), normed, atol=1e-6)
    assert post.prepare(inputs) is inputs
    pre = Residual(layer_norm_epsilon=0.0, normalize_first=True)
    np.testing.assert_allclose(to_numpy(pre(inputs, outputs)), [[[1.0, 7.0]]])
    np.testing.assert_allclose(to_numpy(pre.prepare(inputs)), normed, atol=1e-6)


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_equals_the_reference(normalize_first, epsilon):
    layer = Residual(layer_norm_epsilon=epsilon, normalize_first=normalize_first)
    layer.build(INPUTS.shape)
    weights = with_random_weights(layer).get_weights()
    normed = reference.layer_norm(weights, INPUTS.astype("float64"), epsilon)
    if normalize_first:
        np.testing.assert_allclose(to_numpy(layer.prepare(INPUTS)), normed, atol=1e-5)
        expected = INPUTS + OUTPUTS
    else:
        total = INPUTS.astype("float64") + OUTPUTS
        expected = reference.layer_norm(weights, total, epsilon)
    np.testing.assert_allclose(to_numpy(layer(INPUTS, OUTPUTS)), expected, atol=1e-5)


def test_dropout_touches_the_outputs_alone_and_only_in_training():
    layer = Residual(dropout=0.5, normalize_first=True)
    inputs, outputs = np.zeros((1, 100, 10)), np.ones((1, 100, 10))
    assert (to_numpy(layer(inputs, outputs)) == 1).all()
    dropped = to_numpy(layer(inputs, outputs, training=True))
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert 0.4 < np.mean(dropped == 0) < 0.6
    assert (to_numpy(layer(outputs, inputs, training=True)) == 1).all()
