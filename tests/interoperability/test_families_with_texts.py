"""Folders with tokenizers: texts in, texts out, as transformers computes them."""

import json

import keras
import numpy as np
import published_models
import pytest
import tensorflow as tf
import torch
from keras import ops
from transformers import AutoTokenizer

from keras_transformer import GreedySearch, load_pretrained
from keras_transformer.models import CausalLM, Seq2Seq

pytestmark = pytest.mark.once
TEXTS = ["a man sees two dogs", "Zwei Hunde!", "the man"]
LANGUAGES = {
    "mbart": {"source_language": "en_XX", "target_language": "ro_RO"},
    "nllb": {"source_language": "eng_Latn", "target_language": "fra_Latn"},
}


class Folder:
    """A model of transformers with a tokenizer, and the same model here."""

    def __init__(self, name, path):
        self.theirs, self.tokenizer = published_models.write_folder(name, path)
        self.name = name
        self.ours = load_pretrained(path, **LANGUAGES.get(name, {}))


@pytest.fixture(scope="module", params=published_models.WITH_TEXTS)
def folder(request, tmp_path_factory):
    return Folder(request.param, tmp_path_factory.mktemp("folder") / "model")


def rows_of_sources(ours):
    if isinstance(ours, CausalLM):
        return ours.source_tokenizer.tokenize(TEXTS).to_list()
    if isinstance(ours, Seq2Seq):
        return ours.source_tokenizer.tokenize(TEXTS, add_end=True).to_list()
    return ours.tokenizer.tokenize(TEXTS, add_start=True, add_end=True).to_list()


def test_token_ids(folder):
    assert rows_of_sources(folder.ours) == folder.tokenizer(TEXTS).input_ids


def test_texts(folder):
    ours, theirs = folder.ours, folder.theirs
    if not isinstance(ours, CausalLM | Seq2Seq):
        pytest.skip("An encoder generates nothing.")
    ours.forces_end_token = False
    options = {"max_new_tokens": 9, "do_sample": False, "num_beams": 1}
    if ours.__class__ is Seq2Seq:
        options |= {"decoder_start_token_id": ours.start_token_id}
        options |= {"forced_bos_token_id": ours.forced_first_token_id}
        options |= {"forced_eos_token_id": None}
    found = ours.generate(TEXTS, GreedySearch(), max_length=9)
    for text, row in zip(TEXTS, rows_of_sources(ours), strict=True):
        ids = torch.tensor([row])
        [output] = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=ours.pad_token_id,
            eos_token_id=ours.end_token_id,
            **options,
        ).tolist()
        new = output[len(row) if isinstance(ours, CausalLM) else 1 :]
        [expected] = ours.target_tokenizer.detokenize([new]).numpy()
        assert found[TEXTS.index(text)] == expected.decode()


def test_they_go_out_and_in_again(folder, tmp_path):
    ours = folder.ours
    ours.save_pretrained(tmp_path / "ours")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert theirs(TEXTS).input_ids == folder.tokenizer(TEXTS).input_ids
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    own = folder.theirs.config
    assert config["vocab_size"] == own.vocab_size
    for name in ("eos_token_id", "decoder_start_token_id"):
        if name in config:
            assert config[name] == getattr(own, name)
    again = load_pretrained(tmp_path / "ours", **LANGUAGES.get(folder.name, {}))
    assert rows_of_sources(again) == rows_of_sources(ours)
    for one, other in zip(ours.weights, again.weights, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(one), ops.convert_to_numpy(other), atol=1e-6
        )


def test_languages_are_checked(tmp_path):
    Folder("nllb", tmp_path)
    with pytest.raises(
        ValueError, match="`target_language` must be .*'fra_Latn'.*None"
    ):
        load_pretrained(tmp_path, source_language="eng_Latn")
    with pytest.raises(ValueError, match="`source_language` must .*'eng_Latn'.*'en'"):
        load_pretrained(tmp_path, source_language="en", target_language="fra_Latn")
    Folder("t5", tmp_path / "t5")
    with pytest.raises(ValueError, match="must be `None` for a model of 't5'"):
        load_pretrained(tmp_path / "t5", source_language="en")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nllb", "bart"])
def test_a_saved_model(name, tmp_path):
    ours = Folder(name, tmp_path / "folder").ours
    # The export compares the outputs of a new process with those of `generate`.
    ours.export(tmp_path / "saved_model", GreedySearch(), max_length=5)
    loaded = tf.saved_model.load(tmp_path / "saved_model")
    texts = loaded.signatures["serving_default"](tf.constant(TEXTS))["text"]
    expected = ours.generate(TEXTS, GreedySearch(), max_length=5)
    assert [text.decode() for text in texts.numpy()] == expected


@pytest.mark.parametrize("name", ["bert", "nllb"])
def test_a_keras_file(name, tmp_path):
    ours = Folder(name, tmp_path / "folder").ours
    ours.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert rows_of_sources(again) == rows_of_sources(ours)
    assert again.get_config() == ours.get_config()
