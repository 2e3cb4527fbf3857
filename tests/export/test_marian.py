"""transformers loads a written folder and computes the same logits."""

import json

import marian_folders
import numpy as np
import pytest
import torch
from layer_contract import to_numpy, with_random_weights

from keras_transformer import Ensemble, Seq2Seq
from keras_transformer.export import export_marian
from keras_transformer.interoperability import load_marian
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
    export_marian(model, tmp_path / "model")
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
    model = load_marian(tmp_path / "theirs")
    export_marian(model, tmp_path / "ours")
    again = load_marian(tmp_path / "ours")
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
        export_marian(model_of(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="`filepath` must be a new or"):
        export_marian(model_of(), tmp_path / "mine")


REFUSED = {
    "positions": ({"positions": PositionalEncoding()}, "`PositionalEncoding(interl"),
    "positions with an offset": (
        {"positions": PositionalEncoding(interleaved=False, offset=2)},
        "`PositionalEncoding(interl",
    ),
    "normalize_first": ({"normalize_first": True}, "`False`"),
    "normalization": ({"residual_options": {"normalization": "rms"}}, "'layer'"),
    "layer_norm_epsilon": ({"layer_norm_epsilon": 1e-6}, "1e-05"),
    "activation": ({"activation": "elu"}, "one of 'gelu', 'relu'"),
    "gated": ({"feed_forward_options": {"gated": True}}, "`False`"),
    "use_bias": ({"attention_options": {"use_bias": False}}, "`True`"),
    "use_bias of some": (
        {"attention_options": {"use_bias": ["query", "key", "value"]}},
        "`True`",
    ),
    "pattern": ({"attention_options": {"pattern": LocalWindow(1)}}, "`None`"),
    "sliding_window": ({"attention_options": {"sliding_window": 2}}, "`None`"),
    "query_key_normalization": (
        {"attention_options": {"query_key_normalization": "layer"}},
        "`None`",
    ),
    "use_gate": ({"attention_options": {"use_gate": True}}, "`False`"),
    "num_key_value_heads": (
        {"attention_options": {"num_key_value_heads": 1}},
        "`num_heads`",
    ),
    "key_dim": ({"attention_options": {"key_dim": 5}}, "`hidden_dim / num_heads`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_architectures_are_refused(name, model_of, tmp_path):
    design, message = REFUSED[name]
    argument = name.split()[0]
    with pytest.raises(ValueError) as error:
        export_marian(model_of(**design), tmp_path / "model")
    assert f"`{argument}` must be {message}" in str(error.value)
    assert f"for Marian; received `{argument}=" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_other_tokenizers_are_refused(tmp_path):
    sizes = {name: MARIAN[name] for name in ("num_layers", "hidden_dim", "num_heads")}
    letters = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", "a"])
    model = Seq2Seq(**sizes, intermediate_dim=7, source_tokenizer=letters)
    message = "`source_tokenizer` must be a `MarianTokenizer` .* `CharacterTokenizer`"
    with pytest.raises(ValueError, match=message):
        export_marian(model, tmp_path / "model")
    with pytest.raises(ValueError, match="for Marian; .*class `Ensemble`"):
        export_marian(Ensemble([model]), tmp_path / "model")


def test_a_quantized_model_is_refused(model_of, tmp_path):
    model = model_of()
    model.decoder.blocks[0].feed_forward.output_dense.quantize("int8")
    with pytest.raises(ValueError, match="quantized model cannot be exported or"):
        export_marian(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
