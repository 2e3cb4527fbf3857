import math

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import on_torch, to_numpy, with_random_weights

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import (
    AlibiBias,
    LearnedPositionalEncoding,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.layers.positions.scheme import (
    AttentionBias,
    position_angles,
    relative_positions,
    sinusoid_frequencies,
)

RNG = np.random.default_rng(17)
INPUTS = RNG.normal(size=(2, 3, 10)).astype("float32")
HEADS = RNG.normal(size=(2, 3, 5, 4)).astype("float32")
LOGITS_SHAPE = (None, 5, None, None)
POSITIONS = np.array([[0, 1, 2], [7, 3, 11]], "int32")


def encode(scheme, positions):
    return scheme.encode(ops.convert_to_tensor(INPUTS), positions)


def rotate(scheme, positions):
    return scheme.rotate(ops.convert_to_tensor(HEADS), positions)


def bias(scheme, positions):
    return scheme.bias(positions, positions[..., :2])


SCHEMES = {
    PositionalEncoding: ({}, INPUTS.shape, encode),
    LearnedPositionalEncoding: ({"max_length": 13}, INPUTS.shape, encode),
    RotaryEmbedding: ({}, HEADS.shape, rotate),
    AlibiBias: ({}, LOGITS_SHAPE, bias),
    RelativePositionBias: ({}, LOGITS_SHAPE, bias),
}
every_scheme = pytest.mark.parametrize("scheme_class", SCHEMES)


def built(scheme_class, **options):
    init_kwargs, shape, use = SCHEMES[scheme_class]
    scheme = scheme_class(**init_kwargs, **options)
    scheme.build(shape)
    return with_random_weights(scheme), use


def test_a_scheme_does_nothing_until_a_method_is_overridden():
    scheme = PositionScheme()
    assert scheme.encode(INPUTS, POSITIONS) is INPUTS
    assert scheme.rotate(HEADS, POSITIONS) is HEADS
    assert bias(scheme, POSITIONS) is None
    assert not scheme.added_to_inputs


@pytest.mark.once("torch")
@every_scheme
def test_overrides_one_method(scheme_class):
    own = {"encode", "rotate", "bias"} & set(vars(scheme_class))
    assert own == {SCHEMES[scheme_class][2].__name__}
    assert scheme_class.added_to_inputs == (own == {"encode"})
    assert issubclass(scheme_class, PositionScheme)


def test_traced_positions():
    schemes = [built(scheme_class) for scheme_class in SCHEMES]
    weights = keras.Sequential([scheme for scheme, _ in schemes])

    def call(rows, shared):
        return [use(scheme, x) for scheme, use in schemes for x in (rows, shared)]

    compiled = compile_function(call, weights)
    traced = compiled(*map(ops.convert_to_tensor, (POSITIONS, POSITIONS[1])))
    for one, other in zip(traced, call(POSITIONS, POSITIONS[1]), strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)


@pytest.mark.once("torch")
@every_scheme
def test_a_row_of_positions_is_as_positions_alone(scheme_class):
    scheme, use = built(scheme_class)
    for row, positions in enumerate(POSITIONS):
        alone = to_numpy(use(scheme, positions))
        alone = alone if use is bias else alone[row]
        np.testing.assert_allclose(
            to_numpy(use(scheme, POSITIONS))[row], alone, atol=1e-6
        )


@pytest.mark.parametrize("scheme_class", [AlibiBias, RelativePositionBias])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_bias_is_float32_within_a_layer_of_half_precision(scheme_class, policy):
    class Outer(keras.layers.Layer):
        def call(self, inputs, scheme):
            return scheme.bias(POSITIONS[0], POSITIONS[1])

    scheme, _ = built(scheme_class, dtype=policy)
    output = Outer(dtype=policy)(INPUTS, scheme=scheme)
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    expected = scheme.bias(POSITIONS[0], POSITIONS[1])
    np.testing.assert_array_equal(to_numpy(output), to_numpy(expected))
    np.testing.assert_array_equal(output.shape, (5, 3, 3))


@pytest.mark.parametrize("scheme_class", [AlibiBias, RelativePositionBias])
def test_bias_is_added_to_logits_of_any_precision_and_rounded_once(scheme_class):
    logits = RNG.normal(size=(2, 5, 3, 2)).astype("float32")
    scheme, use = built(scheme_class)
    expected = logits + to_numpy(use(scheme, POSITIONS))
    half, _ = built(scheme_class, dtype="mixed_float16")
    output = half(logits, POSITIONS, POSITIONS[:, :2])
    np.testing.assert_allclose(to_numpy(output), expected, rtol=2**-10, atol=1e-3)
    output = scheme(logits, query_positions=POSITIONS, key_positions=POSITIONS[:, :2])
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-6)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "scheme_class", [LearnedPositionalEncoding, RelativePositionBias]
)
def test_initial_weights(scheme_class):
    def weights(seed, **options):
        keras.utils.set_random_seed(seed)
        init_kwargs, shape, _ = SCHEMES[scheme_class]
        scheme = scheme_class(**init_kwargs, **options)
        scheme.build(shape)
        return scheme.get_weights()[0]

    np.testing.assert_array_equal(weights(3), weights(3))
    assert not np.array_equal(weights(3), weights(5))
    assert 0.03 < np.std(weights(3)) < 0.07
    assert (weights(3, embeddings_initializer="ones") == 1).all()


@pytest.mark.parametrize(
    ("dim", "positions"), [(7, [0, 3, 11]), (4, [[2], [5]]), on_torch(1, [0, 3, 11])]
)
def test_position_angles(dim, positions):
    positions = np.array(positions)
    expected = np.zeros((*positions.shape, math.ceil(dim / 2)))
    for index in np.ndindex(expected.shape):
        expected[index] = positions[index[:-1]] / 300 ** (2 * index[-1] / dim)
    frequencies = sinusoid_frequencies(dim, 300)
    angles = to_numpy(position_angles(positions, frequencies))
    np.testing.assert_allclose(angles, expected, rtol=1e-6)


class Relative(AttentionBias):
    """Adds key position - query position to the logits of each head."""

    def bias(self, query_positions, key_positions):
        relative = relative_positions(query_positions, key_positions)
        return ops.cast(relative, "float32")[..., None, :, :]


def test_relative_positions():
    queries, keys = np.array([[4, 5], [0, 9]]), np.array([3, 4, 8])
    relative = to_numpy(relative_positions(queries, keys)).tolist()
    assert relative == [[[-1, 0, 4], [-2, -1, 3]], [[3, 4, 8], [-6, -5, -1]]]


def test_positions_default_to_0_1_2():
    logits = np.full((2, 3, 2, 3), 0.5, "float32")
    biased = to_numpy(Relative()(logits))
    for matrix in biased.reshape(-1, 2, 3):
        assert matrix.tolist() == [[0.5, 1.5, 2.5], [-0.5, 0.5, 1.5]]
    biased = to_numpy(Relative()(logits, query_positions=np.array([7, 5])))
    assert biased[1, 2].tolist() == [[-6.5, -5.5, -4.5], [-4.5, -3.5, -2.5]]
    biased = to_numpy(Relative()(logits, key_positions=np.array([2, 5, 9])))
    assert biased[1, 2].tolist() == [[2.5, 5.5, 9.5], [1.5, 4.5, 8.5]]
