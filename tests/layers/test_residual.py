import keras
import numpy as np
import pytest
import reference
from layer_contract import (
    check_layer,
    get_mask,
    to_numpy,
    with_mask,
    with_random_weights,
)

from keras_transformer.layers import Residual

RNG = np.random.default_rng(6)
INPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")
OUTPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")

NORM_SHAPES = {"layer": [(5,), (5,)], "rms": [(5,)], None: []}

each_normalization = pytest.mark.parametrize("normalization", NORM_SHAPES)
each_norm = pytest.mark.parametrize("normalize_first", [False, True])


def normed_by_hand(normalization, weights, inputs, epsilon):
    inputs = inputs.astype("float64")
    if normalization is None:
        return inputs
    if normalization == "layer":
        return reference.layer_norm(weights, inputs, epsilon)
    rows = [row / np.sqrt(row @ row / 5 + epsilon) for row in inputs.reshape(-1, 5)]
    return (np.array(rows) * weights[0]).reshape(inputs.shape)


@pytest.mark.parametrize(
    ("normalization", "normalize_first"),
    [("layer", False), ("rms", True), (None, True)],
)
def test_contract(normalization, normalize_first):
    arguments = {
        "dropout": 0.3,
        "layer_norm_epsilon": 1e-3,
        "normalize_first": normalize_first,
        "normalization": normalization,
        "stochastic_depth": 0.25,
    }
    shapes = NORM_SHAPES[normalization]
    check_layer(Residual, arguments, [INPUTS, OUTPUTS], shapes)


def test_by_hand():
    inputs, outputs = np.array([[[1.0, 2.0]]]), np.array([[[0.0, 5.0]]])
    post = Residual(layer_norm_epsilon=1e-12)
    normed = [[[-1.0, 1.0]]]
    np.testing.assert_allclose(to_numpy(post(inputs, outputs)), normed, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(post.prepare(inputs)), inputs)
    pre = Residual(layer_norm_epsilon=1e-12, normalize_first=True)
    np.testing.assert_allclose(to_numpy(pre(inputs, outputs)), [[[1.0, 7.0]]])
    np.testing.assert_allclose(to_numpy(pre.prepare(inputs)), normed, atol=1e-6)


@each_norm
@each_normalization
def test_equals_the_reference(normalization, normalize_first):
    epsilon = 0.1
    layer = Residual(
        layer_norm_epsilon=epsilon,
        normalize_first=normalize_first,
        normalization=normalization,
    )
    layer.build(INPUTS.shape)
    weights = with_random_weights(layer).get_weights()
    if normalize_first:
        normed = normed_by_hand(normalization, weights, INPUTS, epsilon)
        np.testing.assert_allclose(to_numpy(layer.prepare(INPUTS)), normed, atol=1e-5)
        expected = INPUTS + OUTPUTS
    else:
        np.testing.assert_array_equal(to_numpy(layer.prepare(INPUTS)), INPUTS)
        expected = normed_by_hand(normalization, weights, INPUTS + OUTPUTS, epsilon)
    np.testing.assert_allclose(to_numpy(layer(INPUTS, OUTPUTS)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("normalization", "normalize_first"),
    [("layer", True), ("rms", True), (None, False)],
)
def test_prepared_inputs_keep_their_mask(normalization, normalize_first):
    layer = Residual(normalization=normalization, normalize_first=normalize_first)
    layer.build(INPUTS.shape)
    mask = np.tri(2, 3, k=1, dtype=bool)
    prepared = layer.prepare(with_mask(INPUTS, mask))
    np.testing.assert_array_equal(get_mask(prepared), mask)


@pytest.mark.parametrize(
    ("normalization", "normalize_first"), [("layer", True), ("rms", False)]
)
def test_in_a_functional_model(normalization, normalize_first, tmp_path):
    inputs = x = keras.Input((None, 5))
    for _ in range(2):
        layer = Residual(normalize_first=normalize_first, normalization=normalization)
        x = layer(x, keras.layers.Dense(5)(layer.prepare(x)))
    model = with_random_weights(keras.Model(inputs, x))
    assert len(model.weights) == 2 * (2 + len(NORM_SHAPES[normalization]))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    model.save(tmp_path / "model.keras")
    for other in (clone, keras.saving.load_model(tmp_path / "model.keras")):
        np.testing.assert_array_equal(to_numpy(other(INPUTS)), to_numpy(model(INPUTS)))


def test_dropout_touches_the_outputs_alone_and_only_in_training():
    layer = Residual(dropout=0.5, normalize_first=True)
    inputs, outputs = np.zeros((1, 100, 10)), np.ones((1, 100, 10))
    assert (to_numpy(layer(inputs, outputs)) == 1).all()
    dropped = to_numpy(layer(inputs, outputs, training=True))
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert 0.4 < np.mean(dropped == 0) < 0.6
    assert (to_numpy(layer(outputs, inputs, training=True)) == 1).all()


def test_stochastic_depth_leaves_out_whole_rows_of_the_batch():
    layer = Residual(stochastic_depth=0.2, normalize_first=True)
    inputs = RNG.normal(size=(1000, 2, 3)).astype("float32")
    outputs = RNG.normal(size=(1000, 2, 3)).astype("float32")
    np.testing.assert_array_equal(to_numpy(layer(inputs, outputs)), inputs + outputs)
    total = to_numpy(layer(inputs, outputs, training=True))
    left_out = (total == inputs).all(axis=(1, 2))
    assert 0.15 < left_out.mean() < 0.25
    kept = (inputs + outputs / 0.8)[~left_out]
    np.testing.assert_allclose(total[~left_out], kept, atol=1e-5)


@pytest.mark.once("torch")
def test_a_seed_is_kept_for_a_rate_above_zero_alone():
    rates = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1)]
    layers = [Residual(dropout, stochastic_depth=depth) for dropout, depth in rates]
    assert [len(layer.variables) for layer in layers] == [0, 1, 1, 2]


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("name", "value", "must_be"),
    [
        ("dropout", -0.1, r"in \[0, 1\)"),
        ("stochastic_depth", 1.0, r"in \[0, 1\)"),
        ("normalization", "batch", ".*"),
    ],
)
def test_an_argument_out_of_range_is_named(name, value, must_be):
    message = f"`{name}` must be {must_be}; received `{name}={value!r}`"
    with pytest.raises(ValueError, match=message):
        Residual(**{name: value})
