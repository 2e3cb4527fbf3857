"""Decoder-only models of CTranslate2 become a `CausalLM` with the same outputs."""

import json
import shutil
import struct
import warnings

import ctranslate2
import marian_folders
import numpy as np
import pytest
from ctranslate2.converters import TransformersConverter
from ctranslate2.specs.common_spec import LayerNormSpec
from ctranslate2_designs import CAUSAL_DESIGNS, LETTERS, causal_model_of
from gpt2_folders import random_model, write_tokenizer
from layer_contract import to_numpy

from keras_transformer import CausalLM, load_pretrained
from keras_transformer.export import ctranslate2 as exporting
from keras_transformer.interoperability import load_ctranslate2
from keras_transformer.interoperability.ctranslate2_architecture import (
    causal_lm_arguments,
)
from keras_transformer.interoperability.ctranslate2_file import read_variables
from keras_transformer.layers import AlibiBias
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer

OTHER = MarianTokenizer(
    marian_folders.pieces(marian_folders.SOURCES, 31), ["</s>", "<unk>", "a", "<pad>"]
)

# What is read from the file does not depend on the backend.
pytestmark = pytest.mark.once("torch")

IDS = np.array([[4, 5, 6, 8, 8], [7, 4, 9, 1, 3]])


def write(model, folder, change=None):
    """Writes a model without the checks of its export, after a change of its parts."""
    spec = exporting.make_spec(model)
    if change is not None:
        change(spec.decoder)
    folder.mkdir()
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return folder


def token_scores(folder, rows):
    """Returns CTranslate2's log-probabilities of the tokens after the first."""
    generator = ctranslate2.Generator(str(folder), intra_threads=1)
    tokens = json.loads((folder / "vocabulary.json").read_text())
    texts = [[tokens[token_id] for token_id in row] for row in rows]
    results = generator.score_batch(texts, max_batch_size=1, max_input_length=0)
    return [result.log_probs for result in results]


def check_scores(folder, model, rows):
    found = model.score_texts(rows, context=20).token_scores
    for row, expected in zip(found, token_scores(folder, rows), strict=True):
        np.testing.assert_allclose(row, expected, atol=2e-5)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write(causal_model_of(), tmp_path_factory.mktemp("good") / "1")


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "1")


# Folders of this library.


@pytest.mark.parametrize("name", CAUSAL_DESIGNS)
def test_an_export_is_loaded(name, tmp_path):
    model = causal_model_of(**CAUSAL_DESIGNS[name]())
    again = load_ctranslate2(write(model, tmp_path / "1"), tokenizer=LETTERS)
    assert isinstance(again, CausalLM) and again.tokenizer is LETTERS
    np.testing.assert_array_equal(to_numpy(again(IDS)), to_numpy(model(IDS)))
    for name in ("tie_embeddings", "activation", "start_token_id", "output_bias"):
        assert getattr(again, name) == getattr(model, name)
    if again.positions.added_to_inputs:
        assert again.max_length == (model.max_length or 2048)


def test_sentence_pieces_are_loaded(tmp_path):
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=29)
    model = causal_model_of(tokenizer=tokenizer)
    exporting._write(model, tmp_path / "1", "int16")
    again = load_ctranslate2(tmp_path / "1")
    assert again.tokenizer.proto == tokenizer.proto
    ids = np.array(tokenizer.tokenize(["the dog sat"]).to_list())
    errors = np.abs(to_numpy(again(ids)) - to_numpy(model(ids)))
    assert 0 < errors.max() < 0.05
    (tmp_path / "1/tokenizer.model").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="tokenizer.model must be a SentencePiece m"):
        load_ctranslate2(tmp_path / "1")


def test_an_older_format(good, tmp_path):
    folder = shutil.copytree(good, tmp_path / "1")
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(struct.pack("I", 5) + content[4:])
    (folder / "config.json").unlink()
    model = load_ctranslate2(folder)
    assert model.tokenizer is None
    assert (model.pad_token_id, model.start_token_id, model.end_token_id) == (0, 2, 3)
    check_scores(folder, model, IDS.tolist())


# Folders of other converters.

ROWS = [[5, 9, 11, 2, 19], [7, 4], [1, 4, 4, 3, 8, 2, 19, 10, 10, 6, 0]]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    sizes = {"vocab_size": 20, "bos_token_id": 19, "eos_token_id": 19}
    random_model(**sizes).save_pretrained(folder)
    write_tokenizer(folder, lambda count: {"vocab_size": count})
    return folder


@pytest.fixture(scope="module")
def converted(gpt2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctranslate2") / "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = ["vocab.json", "merges.txt"]
        TransformersConverter(str(gpt2), copy_files=files).convert(str(folder))
    return folder


@pytest.mark.slow
def test_a_conversion_from_gpt2(gpt2, converted, tmp_path):
    model, other = load_ctranslate2(converted), load_pretrained(gpt2)
    assert model.max_length == 20 and model.tie_embeddings == "all"
    assert model.start_token_id == model.end_token_id == 19
    assert model.pad_token_id == model.tokenizer.pad_token_id == 20
    check_scores(converted, model, ROWS)
    logits = [to_numpy(each(np.array(ROWS[2:])))[..., :20] for each in (model, other)]
    np.testing.assert_allclose(*logits, atol=1e-5)
    texts = ["a man sees", "", "so"]
    ids = model.tokenizer.tokenize(texts).to_list()
    assert ids == other.tokenizer.tokenize(texts).to_list()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(converted / name, tmp_path)
        (converted / name).unlink()
        without = load_ctranslate2(converted)
        assert without.tokenizer is None and without.pad_token_id == 20
        shutil.copy(tmp_path / name, converted)


def test_positive_positions_of_alibi(tmp_path):
    model = causal_model_of(positions=AlibiBias())

    def change(decoder):
        decoder.alibi_use_positive_positions = np.int8(1)

    folder = write(model, tmp_path / "1", change)
    check_scores(folder, load_ctranslate2(folder), IDS.tolist())


# Errors.


def norm():
    spec = LayerNormSpec()
    spec.gamma, spec.beta = np.ones((2, 12), "float32")
    return spec


def set_shared_norm(decoder):
    for layer in decoder.layer:
        vars(layer)["shared_layer_norm"] = norm()
        for part in (layer.self_attention, layer.ffn):
            del vars(part)["layer_norm"]


SETTINGS = {
    "scale_alibi": np.int8(1),
    "start_from_zero_embedding": np.int8(1),
    "final_logit_softcapping": np.float32(30),
    "layer_1/self_attention/sliding_window": np.int32(4),
    "layer_1/self_attention/queries_scale": np.float32(2),
    "layer_1/self_attention/q_norm": norm(),
}


def test_unsupported_parts(tmp_path):
    folder = write(causal_model_of(), tmp_path / "1", set_shared_norm)
    name = "decoder/layer_0/shared_layer_norm/beta"
    with pytest.raises(ValueError, match=f"a model without '{name}'"):
        load_ctranslate2(folder)


@pytest.mark.parametrize("name", SETTINGS)
def test_unsupported_settings(name, tmp_path):
    def change(decoder):
        part = decoder.layer[1].self_attention if "/" in name else decoder
        vars(part)[name.rpartition("/")[2]] = SETTINGS[name]

    folder = write(causal_model_of(), tmp_path / "1", change)
    with pytest.raises(ValueError, match=f"a model without 'decoder/{name}"):
        load_ctranslate2(folder)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("rotary_interleave", np.int8(1), "`rotary_interleave` in model.bin must be 0"),
        ("rotary_dim", np.int32(2), "`rotary_dim` .* must equal `head_dim`.*dim=2"),
        ("rotary_scaling_type", np.int8(0), "a model without '.*/rotary_scaling_type'"),
    ],
)
def test_unsupported_rotary_positions(setting, value, message, tmp_path):
    def change(decoder):
        for layer in decoder.layer:
            vars(layer.self_attention)[setting] = value

    model = causal_model_of(**CAUSAL_DESIGNS["llama"]())
    folder = write(model, tmp_path / "1", change)
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(folder)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"bos_token": None}, {}, "`bos_token` in config.json .* of the vocabulary"),
        ({"eos_token": "<end>"}, {}, "`eos_token` .* received `eos_token='<end>'`"),
        ({"quantization_type": 1}, {}, "a model without 'quantization_type'"),
        ({}, {"source_tokenizer": LETTERS}, "must be `None` for a .* as `tokenizer`"),
        ({}, {"tokenizer": OTHER}, "`tokenizer` must have the special tokens of"),
    ],
)
def test_settings_and_tokenizers(config, options, message, folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(folder, **options)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("decoder/embeddings/weight", (120,)),
        ("decoder/layer_1/self_attention/linear_0/weight", (2**40, 12)),
        ("decoder/layer_0/ffn/linear_0/weight", (2**40, 1)),
    ],
)
def test_shapes_are_checked_before_a_model_is_built(name, shape, tmp_path):
    folder = write(causal_model_of(output_bias=True), tmp_path / "1")
    variables = read_variables(folder / "model.bin")
    array = np.broadcast_to(np.float32(0), shape)  # without memory
    variables._arrays[variables.stored_name(name)] = array
    with pytest.raises(ValueError, match=f"{name}.* must .* has shape .{shape[0]}"):
        causal_lm_arguments(variables, None)
