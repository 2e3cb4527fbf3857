import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import (
    check_layer,
    to_numpy,
    weight_gradients,
    with_random_weights,
)

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import LearnedPositionalEncoding

RNG = np.random.default_rng(19)
INPUTS = RNG.normal(size=(2, 3, 5)).astype("float32")


def built(max_length=7):
    layer = LearnedPositionalEncoding(max_length)
    layer.build((None, None, 5))
    return with_random_weights(layer)


def test_contract():
    check_layer(LearnedPositionalEncoding, {"max_length": 7}, [INPUTS], [(7, 5)])


def test_adds_the_rows_of_its_table():
    layer = built()
    (table,) = layer.get_weights()
    rows = np.array([[0, 6, 2], [5, 5, 1]])
    cases = [
        ({}, table[:3]),
        ({"start_index": 4}, table[4:]),
        ({"start_index": ops.convert_to_tensor(4, "int32")}, table[4:]),
        ({"positions": rows[0]}, table[rows[0]]),
        ({"positions": rows}, table[rows]),
    ]
    for arguments, added in cases:
        output = to_numpy(layer(INPUTS, **arguments))
        np.testing.assert_allclose(output, INPUTS + added, atol=1e-6)


def test_gradients_go_to_the_rows_in_use():
    layer = built()
    positions = np.array([[1, 4, 1], [6, 4, 0]])
    (table,) = layer.get_weights()
    expected = np.zeros((7, 5))
    for row, column in np.ndindex(2, 3):
        position = positions[row, column]
        expected[position] += 2 * (INPUTS[row, column] + table[position])
    (gradient,) = weight_gradients(layer, INPUTS, positions=positions)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


@pytest.mark.once("torch")
@pytest.mark.parametrize("length, start_index", [(8, 0), (3, 5)])
def test_too_long_a_sequence(length, start_index):
    with pytest.raises(
        ValueError,
        match=f"`max_length` must be .*`max_length=7`, `start_index={start_index}`, a "
        f"sequence of {length} tokens. Shorten .* or create .* a larger `max_length`.",
    ):
        built()(np.zeros((1, length, 5), "float32"), start_index=start_index)


def test_positions_outside_of_the_table_are_nan():
    layer = built()
    compiled = compile_function(lambda x, i: layer(x, positions=i), layer)
    positions = np.array([[6, 7, 0], [-1, 2, 100]], "int32")
    output = to_numpy(compiled(*map(ops.convert_to_tensor, (INPUTS, positions))))
    unknown = [[False, True, False], [True, False, True]]
    np.testing.assert_array_equal(np.isnan(output).all(axis=-1), unknown)
    np.testing.assert_array_equal(np.isnan(output).any(axis=-1), unknown)


def test_positions_in_a_functional_model():
    inputs = keras.Input((None, 5))
    positions = keras.Input((None,), dtype="int32")
    layer = LearnedPositionalEncoding(7)
    model = keras.Model([inputs, positions], layer(inputs, positions=positions))
    rows = np.array([[2, 5, 3], [6, 6, 0]], "int32")
    expected = INPUTS + layer.get_weights()[0][rows]
    np.testing.assert_allclose(to_numpy(model([INPUTS, rows])), expected, atol=1e-6)


@pytest.mark.once("torch")
@pytest.mark.parametrize("max_length", [0, -3, 2.0, None])
def test_max_length_out_of_range(max_length):
    with pytest.raises(
        ValueError, match=f"an int of at least 1; received `max_length={max_length}`"
    ):
        LearnedPositionalEncoding(max_length)
