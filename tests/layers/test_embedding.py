import keras
import numpy as np
import pytest
from layer_contract import get_mask, to_numpy

from keras_transformer.layers import PositionalEncoding, ScaledEmbedding

TOKEN_IDS = np.array([[3, 1, 4, 0], [1, 5, 2, 6]])


def test_is_a_scaled_keras_embedding(tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    theirs, ours = (
        keras.Sequential([inputs, layer(7, 9, mask_zero=True)])
        for layer in (keras.layers.Embedding, ScaledEmbedding)
    )
    ours.set_weights(theirs.get_weights())
    output = ours(TOKEN_IDS)
    np.testing.assert_allclose(to_numpy(output), 3 * to_numpy(theirs(TOKEN_IDS)))
    np.testing.assert_array_equal(get_mask(output), TOKEN_IDS != 0)
    ours.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(restored(TOKEN_IDS)), to_numpy(output))


@pytest.mark.once("torch")
def test_in_half_precision():
    output = ScaledEmbedding(7, 9, dtype="mixed_bfloat16")(TOKEN_IDS)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"


def test_quantized_and_with_lora():
    layer = ScaledEmbedding(7, 16, embeddings_initializer="random_normal")
    expected = to_numpy(layer(TOKEN_IDS))
    layer.enable_lora(2)
    np.testing.assert_allclose(to_numpy(layer(TOKEN_IDS)), expected, atol=1e-6)
    layer.quantize("int8")
    output = to_numpy(layer(TOKEN_IDS))
    assert 0 < np.abs(output - expected).max() < 0.01 * np.abs(expected).max()


@pytest.mark.once("torch")
def test_tokens_are_visible_beside_the_encoding():
    """The embeddings are not much smaller than the encoding."""
    keras.utils.set_random_seed(3)
    token_ids = np.arange(100)[None]
    encoding = PositionalEncoding()(np.zeros((1, 100, 64), "float32"))

    def share(layer):
        embeddings = to_numpy(layer(100, 64)(token_ids))
        return embeddings.std() / to_numpy(encoding).std()

    assert share(keras.layers.Embedding) < 0.05 < 0.3 < share(ScaledEmbedding)
