"""transformers loads a written folder and computes the same logits."""

import json

import marian_folders
import numpy as np
import pytest
import torch
from layer_contract import to_numpy, with_random_weights

from keras_transformer import Ensemble, Seq2Seq
from keras_transformer.interoperability import load_pretrained, save_pretrained
from keras_transformer.layers import LocalWindow, PositionalEncoding
from keras_transformer.text import CharacterTokenizer, MarianTokenizer

pytestmark = pytest.mark.once("torch")

TEXTS = [*marian_folders.SOURCES, ">>deu<< two cats", "a zebra ☃ sees me"]
MARIAN = {
    "normalize_first": False,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "hidden_dim": 12,
    "intermediate_dim": 7,
    "num_heads": 3,
    "activation": "silu",
    "output_bias": True,
    "max_source_length": 19,
    "max_target_length": 23,
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Tokenizers of both sides, with one vocabulary and with two."""
    found = {}
    for separate in (False, True):
        folder = tmp_path_factory.mktemp("tokenizers") / "files"
        marian_folders.write_tokenizers(folder, separate)
        names = ["vocab.json", "target_vocab.json" if separate else "vocab.json"]
        found[separate] = {}
        for side, name in zip(("source", "target"), names, strict=True):
            ids = json.loads((folder / name).read_text())
            proto = (folder / f"{side}.spm").read_bytes()
            tokenizer = MarianTokenizer(proto, sorted(ids, key=ids.get))
            found[separate][f"{side}_tokenizer"] = tokenizer
    return found


@pytest.fixture(scope="module")
def model_of(tokenizers):
    def make(separate=False, **design):
        own = tokenizers[separate]
        sizes = {}
        if not separate:
            sizes = {"vocabulary_size": own["source_tokenizer"].vocabulary_size}
        positions = {"positions": PositionalEncoding(interleaved=False)}
        return with_random_weights(
            Seq2Seq(**{**MARIAN, **positions, **sizes, **own, **design})
        )

    return make


def their_logits(folder, texts, targets):
    theirs = marian_folders.MarianMTModel.from_pretrained(folder).eval()
    tokenizer = marian_folders.tokenizer_of(folder)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = theirs(**batch, decoder_input_ids=torch.tensor(targets)).logits
    return batch.input_ids.numpy(), logits.numpy()


DESIGNS = {
    "shared": {},
    "shared, target tied": {"tie_embeddings": "target", "activation": "gelu"},
    "separate, untied": {
        "separate": True,
        "tie_embeddings": "none",
        "scale_embeddings": False,
        "activation": "relu",
    },
    "no bias": {"output_bias": False, "activation": "tanh"},
}


@pytest.mark.parametrize("name", DESIGNS)
def test_transformers_computes_the_same(name, model_of, tmp_path):
    model = model_of(**DESIGNS[name])
    save_pretrained(model, tmp_path / "model")
    targets = np.random.default_rng(5).integers(0, 23, (len(TEXTS), 7))
    ids, logits = their_logits(tmp_path / "model", TEXTS, targets)
    own_ids = model.source_tokenizer.tokenize(TEXTS, add_end=True)
    np.testing.assert_array_equal(own_ids.to_tensor(model.pad_token_id), ids)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": targets}
    np.testing.assert_allclose(to_numpy(model(inputs)), logits, atol=1e-4)


@pytest.mark.parametrize("name", ["tc-big", "all apart"])
def test_a_loaded_model_is_written_unchanged(name, tmp_path):
    config = marian_folders.LIKE_OPUS[name]
    marian_folders.random_model(tmp_path / "theirs", **config, dropout=0.25)
    model = load_pretrained(tmp_path / "theirs")
    save_pretrained(model, tmp_path / "ours")
    again = load_pretrained(tmp_path / "ours")
    for one, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    one, other = model.get_config(), again.get_config()
    different = {name for name in one if one[name] != other[name]}
    names = {"name", "positions", "vocabulary_size"}  # of one is two of a size
    assert different <= names and one["dropout"] == 0.25
    names = {file.name for file in (tmp_path / "ours").iterdir()}
    assert {file.name for file in (tmp_path / "theirs").iterdir()} == names


def test_the_folder_is_complete_or_absent(model_of, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_pretrained(model_of(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="`filepath` must be a new or"):
        save_pretrained(model_of(), tmp_path / "mine")


REFUSED = {
    "positions.interleaved": ({"positions": PositionalEncoding()}, False),
    "positions.offset": (
        {"positions": PositionalEncoding(interleaved=False, offset=2)},
        0,
    ),
    "attention_options.sliding_window": (
        {"attention_options": {"sliding_window": 2}},
        None,
    ),
    "attention_options.query_key_normalization": (
        {"attention_options": {"query_key_normalization": "layer"}},
        None,
    ),
    "normalize_first": ({"normalize_first": True}, False),
    "residual_options.normalization": (
        {"residual_options": {"normalization": "rms"}},
        "layer",
    ),
    "layer_norm_epsilon": ({"layer_norm_epsilon": 1e-6}, 1e-5),
    "activation": ({"activation": "elu"}, "gelu"),
    "feed_forward_options.gated": ({"feed_forward_options": {"gated": True}}, False),
    "attention_options.use_bias": ({"attention_options": {"use_bias": False}}, True),
    "attention_options.pattern": (
        {"attention_options": {"pattern": LocalWindow(1)}},
        None,
    ),
    "attention_options.use_gate": ({"attention_options": {"use_gate": True}}, False),
    "attention_options.num_key_value_heads": (
        {"attention_options": {"num_key_value_heads": 1}},
        3,
    ),
    "attention_options.key_dim": ({"attention_options": {"key_dim": 5}}, 4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_architectures_are_refused(name, model_of, tmp_path):
    design, expected = REFUSED[name]
    with pytest.raises(ValueError) as error:
        save_pretrained(model_of(**design), tmp_path / "model", "marian")
    assert "nearest one is 'marian'" in str(error.value)
    assert f"`{name}` must be {expected!r}, received `{name}=" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_other_tokenizers_are_refused(model_of, tmp_path):
    letters = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", "a"])
    sizes = {"vocabulary_size": 5, "source_tokenizer": letters}
    positions = PositionalEncoding(interleaved=False)
    model = Seq2Seq(**MARIAN, **sizes, positions=positions, pad_token_id=0)
    message = "`decoder_start_token_id in config.json` must be 0"
    with pytest.raises(ValueError, match=message):
        save_pretrained(model, tmp_path / "model", "marian")
    with pytest.raises(ValueError, match="received a `Ensemble`"):
        save_pretrained(Ensemble([model]), tmp_path / "model")


def test_a_quantized_model_is_refused(model_of, tmp_path):
    model = model_of()
    model.decoder.blocks[0].feed_forward.output_dense.quantize("int8")
    with pytest.raises(ValueError, match="quantized model cannot be exported or"):
        save_pretrained(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_forced_first_token_is_written(model_of, tmp_path):
    model = model_of(forced_first_token_id=5)
    save_pretrained(model, tmp_path / "model", "marian")
    assert load_pretrained(tmp_path / "model").forced_first_token_id == 5
