"""Tests of the Keras masks of blocks, stacks and attention in models and wrappers.

The right outputs are those of the sequences without their padding, one at a time.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import to_numpy

from keras_transformer.layers import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    MultiHeadAttention,
)

# Padding (0) at the beginning too: causal attention does not see that of the end.
IDS = np.array([[[0, 3, 0, 1, 2], [2, 1, 3, 0, 0], [0, 2, 0, 3, 4]]])
MASK = IDS != 0
ROWS, ROWS_MASK = IDS.reshape(-1, 5), MASK.reshape(-1, 5)
X = np.random.default_rng(3).normal(size=(1, 3, 5, 8)).astype("float32")
X_ROWS = X.reshape(-1, 5, 8)

LAYERS = {
    "encoder block": functools.partial(EncoderBlock, 6, 2),
    "encoder stack": functools.partial(EncoderStack, 2, 6, 2, normalize_first=True),
    "decoder block": functools.partial(DecoderBlock, 6, 2),
    "decoder stack": functools.partial(DecoderStack, 2, 6, 2),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def without_padding(call, x, mask):
    """Returns the outputs at the real positions, in order: `(positions, features)`."""
    rows = [to_numpy(call(row[real][None]))[0] for row, real in zip(x, mask, strict=1)]
    return np.concatenate(rows)


def assert_equal_at_real_positions(outputs, expected, mask):
    outputs = to_numpy(outputs).reshape(*mask.shape, -1)
    np.testing.assert_allclose(outputs[mask], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def embedding():
    layer = keras.layers.Embedding(5, 8, "normal", mask_zero=True)
    layer.build()
    return layer


@pytest.mark.parametrize("kind", ["encoder stack", "decoder block"])
def test_time_distributed(kind, embedding):
    layer = LAYERS[kind]()
    wrapper = keras.layers.TimeDistributed(layer)
    inputs = keras.Input((3 if kind == "encoder stack" else None, 5), dtype="int32")
    model = keras.Model(inputs, wrapper(embedding(inputs)))
    vectors = to_numpy(embedding(ROWS))
    expected = without_padding(layer, vectors, ROWS_MASK)
    assert_equal_at_real_positions(model(IDS), expected, ROWS_MASK)
    outputs = wrapper(X, mask=MASK)
    expected = without_padding(layer, X_ROWS, ROWS_MASK)
    assert_equal_at_real_positions(outputs, expected, ROWS_MASK)


def test_models_copies_and_files(embedding, tmp_path):
    layer, average = DecoderBlock(6, 2), keras.layers.GlobalAveragePooling1D()
    sequential = keras.Sequential([embedding, layer, average])
    inputs = keras.Input((5,), dtype="int32")
    hidden = layer(embedding(inputs))
    functional = keras.Model(inputs, [hidden, average(hidden)])
    positions = without_padding(layer, to_numpy(embedding(ROWS)), ROWS_MASK)
    row_of_position = np.nonzero(ROWS_MASK)[0]
    means = [positions[row_of_position == row].mean(0) for row in range(len(ROWS))]
    # The outputs of the layer have the mask too.
    np.testing.assert_allclose(to_numpy(sequential(ROWS)), means, rtol=1e-4, atol=1e-5)
    functional.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(functional)
    clone.set_weights(functional.get_weights())
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for model in (functional, clone, loaded):
        outputs, averages = model(ROWS)
        assert_equal_at_real_positions(outputs, positions, ROWS_MASK)
        np.testing.assert_allclose(to_numpy(averages), means, rtol=1e-4, atol=1e-5)
    copy = keras.models.clone_model(sequential)
    copy(ROWS)
    copy.set_weights(sequential.get_weights())
    np.testing.assert_allclose(to_numpy(copy(ROWS)), means, rtol=1e-4, atol=1e-5)


@each_layer
def test_a_mask_is_padding_that_is_not_attended_to(make):
    layer = make()
    call = functools.partial(layer, mask=ROWS_MASK)
    expected = without_padding(layer, X_ROWS, ROWS_MASK)
    assert_equal_at_real_positions(call(X_ROWS), expected, ROWS_MASK)
    # Both masks are applied.
    other = ROWS_MASK.copy()
    other[:, 3] = False
    other[:, 4] = True
    is_encoder = isinstance(layer, EncoderBlock | EncoderStack)
    name = "padding_mask" if is_encoder else "decoder_padding_mask"
    both = ROWS_MASK & other
    expected = without_padding(layer, X_ROWS, both)
    assert_equal_at_real_positions(call(X_ROWS, **{name: other}), expected, both)


def test_a_mask_of_a_rematerialized_stack():
    layer = EncoderStack(2, 6, 2, rematerialize=True)
    expected = without_padding(layer, X_ROWS, ROWS_MASK)
    outputs = layer.call(ops.convert_to_tensor(X_ROWS), training=True, mask=ROWS_MASK)
    assert_equal_at_real_positions(outputs, expected, ROWS_MASK)


def test_a_mask_of_a_decoder_with_cross_attention():
    layer = DecoderStack(2, 6, 2)
    source = np.random.default_rng(4).normal(size=(3, 4, 8)).astype("float32")
    layer(X_ROWS, source)
    rows = zip(X_ROWS, source, ROWS_MASK, strict=True)
    expected = [to_numpy(layer(x[m][None], s[None]))[0] for x, s, m in rows]
    outputs = layer(X_ROWS, source, mask=ROWS_MASK)
    assert_equal_at_real_positions(outputs, np.concatenate(expected), ROWS_MASK)


def test_attention_in_models_copies_files_and_wrappers(embedding, tmp_path):
    attention = MultiHeadAttention(2, 4)
    inputs = keras.Input((5,), dtype="int32")
    hidden = embedding(inputs)
    functional = keras.Model(inputs, FeedForward(6)(attention(hidden, hidden)))
    functional.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(functional)
    clone.set_weights(functional.get_weights())
    loaded = keras.saving.load_model(tmp_path / "model.keras")

    def call(x):
        return functional.layers[-1](attention(x, x))

    expected = without_padding(call, to_numpy(embedding(ROWS)), ROWS_MASK)
    for model in (functional, clone, loaded):
        assert_equal_at_real_positions(model(ROWS), expected, ROWS_MASK)
    vectors = keras.Input((5, 8))
    inner = keras.Model(vectors, call(vectors))
    outputs = keras.layers.TimeDistributed(inner)(embedding(IDS))
    assert_equal_at_real_positions(outputs, expected, ROWS_MASK)
