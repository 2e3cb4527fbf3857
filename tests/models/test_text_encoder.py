"""`TextEncoder`: calls, padding, segments, saving and mixed precision."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import to_numpy, with_random_weights

from keras_transformer import LearnedPositionalEncoding, RotaryEmbedding, TextEncoder

SIZES = {
    "num_layers": 2,
    "hidden_dim": 10,
    "intermediate_dim": 7,
    "num_heads": 2,
    "vocabulary_size": 13,
}
BERT = {
    "num_segments": 2,
    "positions": LearnedPositionalEncoding(11),
    "scale_embeddings": False,
    "normalize_embeddings": True,
    "use_pooler": True,
}
ROWS = np.array([[5, 6, 7, 8], [9, 4, 0, 0]])
SEGMENTS = np.array([[0, 0, 1, 1], [0, 1, 0, 0]])


def test_outputs_against_a_reference():
    model = with_random_weights(TextEncoder(**SIZES, **BERT))
    found = to_numpy(model({"token_ids": ROWS, "segment_ids": SEGMENTS}))
    tokens, segments, positions = (
        layer.get_weights()[0]
        for layer in (model.token_embedding, model.segment_embedding, model.encoding)
    )
    x = tokens[ROWS] + segments[SEGMENTS] + positions[: ROWS.shape[1]]
    x = reference.layer_norm(model.norm.get_weights(), x)
    mask = (ROWS != 0)[:, None, None, :]
    for block in model.encoder.blocks:
        x, _ = reference.encoder_block(block.get_weights(), x, mask, False)
    real = ROWS != 0
    np.testing.assert_allclose(found[real], x[real], atol=1e-5)
    kernel, bias = model.pooler.get_weights()
    expected = np.tanh(x[:, 0] @ kernel + bias)
    np.testing.assert_allclose(to_numpy(model.pool(found)), expected, atol=1e-5)


@pytest.mark.parametrize(
    "design", [{}, {"scale_embeddings": False}, {"positions": RotaryEmbedding()}, BERT]
)
def test_a_row_does_not_depend_on_padding(design):
    model = with_random_weights(TextEncoder(**{**SIZES, "hidden_dim": 12, **design}))
    alone = to_numpy(model(ROWS[1:, :2]))
    found = to_numpy(model(ROWS))[1:, :2]
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_segments_default_to_the_first():
    model = with_random_weights(TextEncoder(**SIZES, **BERT))
    inputs = {"token_ids": ROWS, "segment_ids": np.zeros_like(ROWS)}
    np.testing.assert_array_equal(to_numpy(model(ROWS)), to_numpy(model(inputs)))


def test_it_is_saved(tmp_path):
    model = with_random_weights(TextEncoder(**SIZES, **BERT, max_length=9))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config() and again.max_length == 9
    np.testing.assert_array_equal(to_numpy(again(ROWS)), to_numpy(model(ROWS)))


def test_it_is_trained_inside_another_model():
    keras.utils.set_random_seed(1)
    encoder = TextEncoder(**{**SIZES, **BERT, "use_pooler": False, "dropout": 0.0})
    token_ids = keras.Input((None,), dtype="int32")
    outputs = keras.layers.Dense(1)(encoder(token_ids)[:, 0])
    model = keras.Model(token_ids, outputs)
    model.compile("adam", "mse")
    losses = model.fit(ROWS, np.ones((2, 1)), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_half_precision():
    model = TextEncoder(**SIZES, **BERT, dtype="mixed_bfloat16")
    outputs = model(ROWS)
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    assert bool(ops.all(ops.isfinite(outputs)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary_size": None}, "`vocabulary_size`"),
        ({"num_segments": -1}, "`num_segments` must be an int of at least 0"),
        ({"hidden_dim": 11}, "`hidden_dim` must be divisible by `num_heads`"),
        ({"max_length": 20}, "`max_length` must not be greater than"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TextEncoder(**{**SIZES, **BERT, **arguments})


def test_a_model_without_a_pooler():
    model = TextEncoder(**SIZES)
    with pytest.raises(ValueError, match="requires a model with a pooler"):
        model.pool(model(ROWS))
