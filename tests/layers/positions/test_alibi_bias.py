import keras_hub
import numpy as np
import pytest
from layer_contract import check_layer, to_numpy

from keras_transformer.layers import AlibiBias

RNG = np.random.default_rng(29)
LOGITS = RNG.normal(size=(2, 3, 5, 7)).astype("float32")


def bias(num_heads, query_positions, key_positions, **options):
    layer = AlibiBias(**options)
    layer.build((None, num_heads, None, None))
    return to_numpy(layer.bias(np.array(query_positions), np.array(key_positions)))


def masked_softmax(logits, mask):
    exponentials = np.where(mask, np.exp(logits.astype("float64")), 0.0)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_contract():
    check_layer(AlibiBias, {"max_bias": 5}, [LOGITS], [], [(3, None, None)])


def test_by_hand():
    expected = [
        [[0, -1 / 4, -1 / 2], [-1 / 4, 0, -1 / 4]],
        [[0, -1 / 16, -1 / 8], [-1 / 16, 0, -1 / 16]],
    ]
    assert bias(2, [0, 1], [0, 1, 2], max_bias=4).tolist() == expected


# Section 3 gives the first; the published code the others: slopes of 4 (8) heads,
# then the first, third, … of 8 (16).
@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "exponents",
    [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [2, 4, 6, 8, 1, 3],
        [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5],
        [8],
    ],
    ids=len,
)
def test_slopes(exponents):
    slopes = -bias(len(exponents), [0], [1])[:, 0, 0]
    np.testing.assert_allclose(slopes, 2.0 ** -np.array(exponents), rtol=1e-6)


@pytest.mark.once("torch")
@pytest.mark.parametrize("num_heads", [1, 12])
def test_equals_keras_hub_under_a_causal_softmax(num_heads):
    logits = RNG.normal(size=(2, num_heads, 11, 11)).astype("float32")
    ours = to_numpy(AlibiBias()(logits))
    theirs = to_numpy(keras_hub.layers.AlibiBias()(logits))
    causal = np.tri(11, dtype=bool)
    np.testing.assert_allclose(
        masked_softmax(ours, causal), masked_softmax(theirs, causal), atol=1e-6
    )
    difference = np.where(causal, ours - theirs, np.nan)
    spread = np.nanmax(difference, axis=-1) - np.nanmin(difference, axis=-1)
    np.testing.assert_allclose(spread, 0, atol=1e-5)


def test_distances_of_explicit_positions():
    queries, keys = [[4, 900], [0, 3]], [[5, 2, 7], [1000, 0, 3]]
    expected = np.zeros((2, 3, 2, 3))
    for row, head, query, key in np.ndindex(*expected.shape):
        distance = abs(queries[row][query] - keys[row][key])
        expected[row, head, query, key] = -[2**-4, 2**-8, 2**-2][head] * distance
    np.testing.assert_allclose(bias(3, queries, keys), expected, rtol=1e-6)
