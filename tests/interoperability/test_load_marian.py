"""Loaded models compute the logits of transformers."""

import shutil

import keras
import marian_folders
import numpy as np
import pytest
import tensorflow as tf
import torch
from layer_contract import to_numpy

from keras_transformer import (
    BeamSearch,
    GreedySearch,
    LabelSmoothedCrossEntropy,
)
from keras_transformer.interoperability import load_pretrained

pytestmark = pytest.mark.once("torch")

TEXTS = [*marian_folders.SOURCES, ">>deu<< two cats", "a zebra ☃ sees me"]


class Pair:
    """A model of transformers, its tokenizer, and the loaded `Seq2Seq`."""

    def __init__(self, model, folder):
        self.theirs = model
        self.tokenizer = marian_folders.tokenizer_of(folder)
        self.folder = folder
        self.ours = load_pretrained(folder)

    def logits(self, texts, decoder_token_ids):
        """Returns the logits of transformers and of the `Seq2Seq`."""
        batch = self.tokenizer(texts, return_tensors="pt", padding=True)
        start = np.full((len(texts), 1), self.ours.start_token_id)
        targets = np.concatenate([start, decoder_token_ids], axis=1)
        with torch.no_grad():
            theirs = self.theirs(**batch, decoder_input_ids=torch.tensor(targets))
        inputs = {
            "encoder_token_ids": batch.input_ids.numpy(),
            "decoder_token_ids": targets,
        }
        return theirs.logits.numpy(), to_numpy(self.ours(inputs))

    def hypotheses(self, texts, **options):
        """Returns four texts of transformers for each input, and their scores."""
        batch = self.tokenizer(texts, return_tensors="pt", padding=True)
        result = self.theirs.generate(
            **batch,
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=19,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        found = self.tokenizer.batch_decode(result.sequences, skip_special_tokens=True)
        rows = [found[i : i + 4] for i in range(0, len(found), 4)]
        return rows, result.sequences_scores.numpy().reshape(-1, 4)


@pytest.fixture(scope="module", params=marian_folders.LIKE_OPUS)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random") / "model"
    config = marian_folders.LIKE_OPUS[request.param]
    return Pair(marian_folders.random_model(folder, **config), folder)


def test_logits(pair):
    size = pair.ours.target_vocabulary_size
    targets = np.random.default_rng(5).integers(0, size, (len(TEXTS), 7))
    theirs, ours = pair.logits(TEXTS, targets)
    assert np.ptp(theirs) > 5
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_tied_embeddings(pair):
    config = pair.theirs.config
    shared = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    assert (pair.ours.source_embedding is pair.ours.target_embedding) == shared
    assert (pair.ours.output_dense is None) == config.tie_word_embeddings
    assert (pair.ours.num_layers, pair.ours.num_decoder_layers) == (2, 1)
    assert pair.ours.max_source_length == pair.ours.max_target_length == 23


@pytest.mark.parametrize("pair", ["tied", "all apart"], indirect=True)
def test_hypotheses(pair, tmp_path):
    expected, scores = pair.hypotheses(TEXTS, length_penalty=0.0)
    search = BeamSearch(4, 0.0, num_hypotheses=4)
    found, own_scores = pair.ours.generate(TEXTS, search, 19, return_scores=True)
    assert len({text for row in expected for text in row}) > 3
    np.testing.assert_allclose(own_scores, scores, atol=1e-4)
    assert found == expected
    # One file has the model and its tokenizers.
    pair.ours.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert loaded.generate(TEXTS, search, 19) == expected


@pytest.mark.parametrize("pair", ["tied"], indirect=True)
def test_padding_is_never_chosen(pair):
    ours = load_pretrained(pair.folder)
    bias = np.zeros(ours.target_vocabulary_size, "float32")
    bias[ours.pad_token_id] = 100
    ours.logits_bias.assign(bias)
    rows = ours.source_tokenizer.tokenize(TEXTS, add_end=True).to_list()
    result = ours.generate(rows, GreedySearch(), max_length=7)
    for ids, length in zip(result.token_ids[:, 0], result.lengths[:, 0], strict=True):
        assert ours.pad_token_id not in ids[:length]


@pytest.mark.parametrize("pair", ["tied"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted_to_float32(pair, tmp_path, dtype):
    half = marian_folders.MarianMTModel.from_pretrained(pair.folder, dtype=dtype)
    shutil.copytree(pair.folder, tmp_path / "half")
    half.save_pretrained(tmp_path / "half")
    ours = load_pretrained(tmp_path / "half")
    for weight, exact in zip(ours.weights, pair.ours.weights, strict=True):
        rounded = torch.tensor(to_numpy(exact)).to(dtype).float().numpy()
        np.testing.assert_array_equal(to_numpy(weight), rounded)
        assert keras.backend.standardize_dtype(weight.dtype) == "float32"


@pytest.mark.parametrize("name", ["all apart"])
def test_one_step_of_training_is_that_of_transformers(tmp_path, name):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    config = {**marian_folders.LIKE_OPUS[name], **rates}
    theirs = marian_folders.random_model(tmp_path / "1", **config)
    ours, before = load_pretrained(tmp_path / "1"), load_pretrained(tmp_path / "1")
    tokenizer = marian_folders.tokenizer_of(tmp_path / "1")
    texts = {"text_target": marian_folders.TARGETS, "padding": True}
    batch = tokenizer(marian_folders.SOURCES, **texts, return_tensors="pt")
    targets, pad = batch["labels"].clone(), ours.pad_token_id
    batch["labels"][targets == pad] = -100
    start = torch.full((len(targets), 1), pad)
    inputs = {
        "encoder_token_ids": batch["input_ids"].numpy(),
        "decoder_token_ids": torch.cat([start, targets[:, :-1]], dim=1).numpy(),
    }
    loss = LabelSmoothedCrossEntropy(0.0, pad_token_id=pad)
    ours.compile(keras.optimizers.SGD(0.1), loss)
    found = ours.fit(inputs, targets.numpy(), batch_size=4, verbose=0).history["loss"]
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    expected = theirs(**batch).loss
    expected.backward()
    optimizer.step()
    theirs.save_pretrained(tmp_path / "1")
    assert np.isclose(found[0], expected.item(), atol=1e-4)
    changed = 0
    weights = ours.weights, load_pretrained(tmp_path / "1").weights, before.weights
    for weight, other, old in zip(*weights, strict=True):
        values, others, olds = map(to_numpy, (weight, other, old))
        if "embedding" in weight.path:
            # PyTorch gives the embedding of padding, the start token, no gradient.
            values, others = np.delete(values, pad, 0), np.delete(others, pad, 0)
        # transformers does not train `final_logits_bias`.
        if not weight.path.endswith(("output_bias", "output/bias")):
            np.testing.assert_allclose(values, others, atol=1e-4)
            changed += np.ptp(olds - to_numpy(weight)) > 1e-3
    assert changed > 10


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("pair", ["tied"], indirect=True)
def test_a_saved_model_equals_generate(pair, tmp_path):
    pair.ours.export(tmp_path / "1", BeamSearch(2), check_texts=TEXTS)
    functions = tf.saved_model.load(str(tmp_path / "1")).signatures
    texts = [*TEXTS, ">>deu<<", ""]
    served = functions["serving_default"](text=tf.constant(texts))["text"].numpy()
    expected = pair.ours.generate(texts, BeamSearch(2))
    assert [text.decode() for text in served] == expected
    assert expected[len(TEXTS) :] == ["", ""]
    unknown, known = tf.constant([">>fra<< a cat"]), tf.constant(["a cat"])
    seed = tf.constant([1])
    for name, inputs in {
        "serving_default": {"text": unknown},
        "attention": {"text": unknown},
        "nbest": {"text": known, "prefix": unknown, "seed": seed},
        "score": {"source": known, "target": unknown},
    }.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match="a language token of"):
            functions[name](**inputs)
