"""Exported models have the merged kernels of a model with LoRA."""

import ctranslate2
import numpy as np
import pytest
from keras import ops
from layer_contract import with_random_weights

from keras_transformer import Seq2Seq, enable_lora, load_ctranslate2, merge_lora
from keras_transformer.text import SentencePieceTokenizer

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat"]


@pytest.fixture(scope="module")
def model():
    tokenizer = SentencePieceTokenizer.train(lines=TEXTS * 9, vocabulary_size=31)
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=16,
        intermediate_dim=24,
        num_heads=2,
        source_tokenizer=tokenizer,
    )
    enable_lora(with_random_weights(model), rank=2, targets="all")
    model.target_embedding.enable_lora(2)
    return with_random_weights(model, seed=5)


def logits(model):
    rows = np.random.default_rng(1).integers(3, 31, (3, 5))
    inputs = {"encoder_token_ids": rows, "decoder_token_ids": rows}
    return ops.convert_to_numpy(model(inputs))


def test_the_merged_model(model):
    """Also with LoRA of an embedding, which the method of Keras adds."""
    merged = merge_lora(model)
    np.testing.assert_allclose(logits(merged), logits(model), rtol=1e-4, atol=1e-4)
    assert len(model.weights) == len(merged.weights) + 2 * 17


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_saved_model(quantization, model, tmp_path):
    import tensorflow as tf

    # The writer compares the outputs with those of the merged model.
    model.export(tmp_path / "1", num_beams=2, quantization=quantization)
    if quantization is None:
        loaded = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
        found = loaded(text=tf.constant(TEXTS))["text"].numpy()
        assert [text.decode() for text in found] == model.generate(TEXTS, num_beams=2)


@pytest.mark.once("torch")
def test_a_folder_of_ctranslate2(model, tmp_path):
    model.export(tmp_path / "folder", format="ctranslate2")
    assert ctranslate2.Translator(str(tmp_path / "folder")) is not None
    loaded = load_ctranslate2(tmp_path / "folder")
    np.testing.assert_allclose(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.once
def test_a_folder_of_onnx(model, tmp_path):
    # The writer compares the outputs of the files with those of the merged model.
    model.export(tmp_path / "folder", format="onnx")
    assert (tmp_path / "folder").is_dir()
