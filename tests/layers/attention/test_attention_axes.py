"""`MultiHeadAttention` over other axes than the second."""

import itertools

import keras
import numpy as np
import pytest
from layer_contract import get_mask, on_torch, to_numpy, with_mask, with_random_weights

from keras_transformer.layers import LocalWindow, MultiHeadAttention, RotaryEmbedding

RNG = np.random.default_rng(43)
BATCH, NUM_HEADS, KEY_DIM, VALUE_DIM, HIDDEN_DIM = 2, 3, 4, 13, 7

# Attention axes; axes of queries and keys between the batch and the features; axes
# of a mask.
CASES = [
    (2, (5, 3), (5, 7), (1, 5, NUM_HEADS, 3, 7)),
    (-2, (5, 3), (5, 7), (BATCH, 5, 3, 7)),
    (1, (5, 3), (11, 3), (5, 11)),
    (None, (5, 3), (2, 7), (5, 3, 2, 7)),
    ((1, 3), (2, 3, 5), (1, 3, 7), (BATCH, 3, NUM_HEADS, 2, 5, 1, 7)),
    ((1, 2, 3), (2, 3, 5), (1, 2, 7), None),
]
each_case = pytest.mark.parametrize(
    ("axes", "query_axes", "key_axes", "mask_shape"),
    [CASES[0], *itertools.starmap(on_torch, CASES[1:])],
)


def random(*shape):
    return RNG.normal(size=shape).astype("float32")


def random_mask(shape):
    if shape is None:
        return None
    mask = RNG.random(shape) < 0.6
    mask[..., 0] = True
    return mask


def attention(query, value, cls=MultiHeadAttention, **arguments):
    layer = cls(NUM_HEADS, KEY_DIM, **arguments)
    layer.build(query.shape, value.shape)
    return with_random_weights(layer)


@each_case
def test_equals_keras(axes, query_axes, key_axes, mask_shape):
    query = random(BATCH, *query_axes, HIDDEN_DIM)
    value = random(BATCH, *key_axes, HIDDEN_DIM)
    arguments = {"attention_axes": axes, "use_gate": True, "value_dim": VALUE_DIM}
    ours = attention(query, value, **arguments)
    theirs = attention(query, value, keras.layers.MultiHeadAttention, **arguments)
    theirs.set_weights([1.2 * weight for weight in ours.get_weights()])
    ours.set_weights(theirs.get_weights())
    options = {
        "attention_mask": random_mask(mask_shape),
        "return_attention_scores": True,
    }
    output, scores = ours(query, value, **options)
    expected, expected_scores = theirs(query, value, **options)
    for one, other in (output, expected), (scores, expected_scores):
        assert tuple(one.shape) == tuple(other.shape)
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=2e-5)
    del options["return_attention_scores"]
    plain = to_numpy(ours(query, value, **options))
    np.testing.assert_allclose(plain, to_numpy(expected), atol=2e-5)


@pytest.mark.once("torch")
def test_each_row_is_a_sequence_over_the_last_of_two():
    arguments = {
        "pattern": LocalWindow(2),
        "positions": RotaryEmbedding(),
        "num_key_value_heads": 1,
    }
    inputs, key_mask = (
        random(BATCH, 5, 11, HIDDEN_DIM),
        RNG.random((BATCH, 5, 11)) < 0.7,
    )
    options = {"use_causal_mask": True, "return_attention_scores": True}
    layer = attention(inputs, inputs, attention_axes=2, **arguments)
    outputs = layer(inputs, inputs, key_mask=key_mask, **options)
    for row in range(5):
        x = inputs[:, row]
        of_row = attention(x, x, **arguments)
        expected = of_row(x, x, key_mask=key_mask[:, row], **options)
        for one, other in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(
                to_numpy(one)[:, row], to_numpy(other), atol=1e-5
            )


@pytest.mark.once("torch")
def test_implicit_masks():
    inputs, mask = random(BATCH, 5, 11, HIDDEN_DIM), RNG.random((BATCH, 5, 11)) < 0.7
    layer = attention(inputs, inputs, attention_axes=2)
    x = with_mask(inputs, mask)
    output = layer(x, x)
    expected = layer(inputs, inputs, query_mask=mask, value_mask=mask)
    np.testing.assert_array_equal(to_numpy(output), to_numpy(expected))
    np.testing.assert_array_equal(get_mask(output), mask)


def test_in_a_functional_model_of_unknown_sizes():
    inputs = keras.Input((None, None, HIDDEN_DIM))
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, attention_axes=2)
    output, scores = layer(inputs, inputs, return_attention_scores=True)
    assert output.shape == (None, None, None, HIDDEN_DIM)
    assert scores.shape == (None, None, NUM_HEADS, None, None)
    x = random(BATCH, 5, 3, HIDDEN_DIM)
    found = keras.Model(inputs, [output, scores])(x)
    expected = layer(x, x, return_attention_scores=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)
