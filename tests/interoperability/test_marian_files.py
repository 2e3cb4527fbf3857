"""Errors for folders that are not Marian models; nothing in them is executed."""

import json
import pickle
import re
import shutil
import sys

import huggingface_hub
import marian_folders
import numpy as np
import pytest
import torch
from layer_contract import to_numpy
from safetensors.numpy import load_file, save_file

from keras_transformer.interoperability import load_pretrained
from keras_transformer.layers import PositionalEncoding

pytestmark = pytest.mark.once("torch")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "model"
    marian_folders.random_model(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


def set_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


SETTINGS = {
    "model_type": ("clip", "'gpt2', 'llama'"),
    "is_encoder_decoder": (False, "True"),
    "normalize_before": (True, "False"),
    "add_final_layer_norm": (True, "False"),
    "activation_function": ("quick_gelu", "'gelu', 'gelu_new'"),
    "activation_function again": (["relu"], "'gelu', 'gelu_new'"),
    "d_model": (13, "divisible by 3"),
    "d_model again": (-12, "an int of at least 1"),
    "encoder_layers again": ("2", "an int of at least 1"),
    "vocab_size": (1.5, "an int of at least 1"),
    "max_position_embeddings": (0, "an int of at least 1"),
    "dropout": (1.5, "in [0, 1)"),
    "attention_dropout": (None, "in [0, 1)"),
    "decoder_ffn_dim": (8, "7"),
    "decoder_attention_heads": (2, "3"),
    "decoder_start_token_id": (0, "35"),
    "eos_token_id": ([0, 1], "0, as in vocab.json"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name, folder):
    value, message = SETTINGS[name]
    name = name.split()[0]
    set_config(folder, **{name: value})
    with pytest.raises(ValueError) as error:
        load_pretrained(folder)
    text = str(error.value).replace("` in config.json", " in config.json`")
    assert f"`{name} in config.json` must be {message}" in text
    assert re.search(
        rf"received `{name}( in config.json)?={re.escape(repr(value))}`", text
    )


def test_another_pad_token(folder):
    set_config(folder, pad_token_id=3, decoder_start_token_id=3)
    with pytest.raises(ValueError, match="`pad_token_id` .* as in vocab.json; .*=3`"):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["encoder_ffn_dim", "vocab_size", "encoder_layers"])
def test_sizes_that_the_file_does_not_have(folder, name):
    ffn = {"decoder_ffn_dim": 10**9} if name == "encoder_ffn_dim" else {}
    set_config(folder, **{name: 10**9}, **ffn)
    message = "model.safetensors must have all weights: config.json describes a model"
    with pytest.raises(ValueError, match=message):
        load_pretrained(folder)


@pytest.mark.parametrize(("name", "count"), [("encoder", 1), ("decoder", 2)])
def test_another_number_of_layers(folder, name, count):
    set_config(folder, **{f"{name}_layers": count})
    message = rf"'model\.{name}\.layers\.1\."
    with pytest.raises(ValueError, match=message):
        load_pretrained(folder)


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


CHANGED = {
    "decoder.layers.0.encoder_attn.v_proj.bias": (None, "must hold the tensor 'N' of"),
    "encoder.layers.1.self_attn.q_proj.weight": (
        np.ones((12, 11)),
        r"'N' .* shape \(12, 12\).*\(12, 11\)",
    ),
    "decoder.layers.0.fc2.weight": (np.ones((1, 1)), r"'N' .* shape \(1, 1\)"),
    "encoder.layers.1.fc1.bias": (np.zeros(7, "int8"), "'N' as floats .* type I8"),
    "encoder.layer_norm.weight": (np.ones(12), "it holds 'N', which no weight of"),
    "decoder.layers.0.gate.weight": (np.ones(12), "it holds 'N', which no weight of"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_tensors(folder, name):
    value, message = CHANGED[name]
    name = f"model.{name}"

    def change(tensors):
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value

    change_tensors(folder, change)
    with pytest.raises(ValueError, match=message.replace("N'", f"{name}'")):
        load_pretrained(folder)


def test_a_missing_bias_is_zero(folder):
    change_tensors(folder, lambda tensors: tensors.pop("final_logits_bias"))
    assert not np.any(load_pretrained(folder).logits_bias)


ALIASES = (
    "lm_head.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)


@pytest.mark.parametrize("name", ALIASES)
def test_all_names_of_a_tied_matrix_have_the_same_values(folder, name):
    def copy(tensors):
        tensors[name] = tensors["model.shared.weight"].copy()

    def differ(tensors):
        tensors[name][3, 5] += 1e-3

    change_tensors(folder, copy)
    load_pretrained(folder)
    change_tensors(folder, differ)
    message = "'(.*)' in model.safetensors must equal '(.*)', as config.json ties them"
    with pytest.raises(ValueError, match=message) as error:
        load_pretrained(folder)
    assert f"'{name}'" in str(error.value)


def test_stored_positions_are_compared(folder):
    zeros = np.zeros((1, 23, 12), "float32")
    table = PositionalEncoding(interleaved=False)(zeros)[0]
    name = "model.encoder.embed_positions.weight"
    table = np.array(table).astype("float16")
    change_tensors(folder, lambda tensors: tensors.update({name: table}))
    load_pretrained(folder)
    change_tensors(folder, lambda tensors: tensors.update({name: table[::-1].copy()}))
    with pytest.raises(ValueError, match=f"'{name}' .* must hold sinusoids"):
        load_pretrained(folder)


FILES = ("config.json", "source.spm", "target.spm", "vocab.json")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_damaged_file(folder, name):
    message = "`proto` must be" if name.endswith("spm") else f"{name} must "
    for content in (b"", b"\xff\xfe\x00", b"[1]", b"[" * 100_000):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_pretrained(folder)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"`folder` must have the file {name};"):
        load_pretrained(folder)


def test_damaged_weights(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (b"", b"12345678", b"\xff" * 64, whole[:-9], whole[:999]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a safetensors file; it is another file"):
            load_pretrained(folder)
    path.unlink()
    message = "must have the file model.safetensors or pytorch_model.bin"
    with pytest.raises(FileNotFoundError, match=message):
        load_pretrained(folder)


@pytest.mark.parametrize("token_id", [-1, 36, 2, 1.0, None])
def test_ids_of_a_vocabulary(folder, token_id):
    path = folder / "vocab.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "new": token_id}))
    with pytest.raises(ValueError, match="each token its own id from 0 to 35"):
        load_pretrained(folder)


# `pytorch_model.bin`


@pytest.fixture(scope="module")
def pickled(good, tmp_path_factory):
    """The same model as `pytorch_model.bin`, with all names of the tied matrix."""
    folder = shutil.copytree(good, tmp_path_factory.mktemp("pickled") / "model")
    (folder / "model.safetensors").unlink()
    state = marian_folders.MarianMTModel.from_pretrained(good).state_dict()
    assert set(ALIASES) < set(state)
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def same_weights(one, other):
    for weight, same in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(same))


def test_pickled_weights(good, pickled, monkeypatch):
    expected = load_pretrained(good)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    same_weights(load_pretrained(pickled), expected)


@pytest.mark.once  # PyTorch itself is not the backend.
def test_only_pickled_weights_require_pytorch(good, pickled, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert load_pretrained(good).num_layers == 2
    message = "pytorch_model.bin requires the package torch. To install: pip install"
    with pytest.raises(ModuleNotFoundError, match=message):
        load_pretrained(pickled)


def test_errors_name_the_pickled_file(pickled, tmp_path):
    folder = shutil.copytree(pickled, tmp_path / "model")
    set_config(folder, decoder_layers=2)
    with pytest.raises(ValueError, match="pytorch_model.bin must hold the tensor"):
        load_pretrained(folder)


def test_a_malicious_pickle_is_refused_and_not_run(folder):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was executed",))

    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="pytorch_model.bin must be a dictionary of t"):
        load_pretrained(folder)
    state = {"model.shared.weight": torch.zeros(36, 12), "a": Trap()}
    torch.save(state, path)
    with pytest.raises(ValueError, match="pytorch_model.bin must be a dictionary of t"):
        load_pretrained(folder)


# The Hub.


@pytest.mark.parametrize("has_safetensors", [True, False])
def test_a_name_is_downloaded(folder, has_safetensors, tmp_path, monkeypatch):
    requests = []

    def download(name, **options):
        requests.append((name, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    arguments = "Helsinki-NLP/opus-mt-en-de", "refs/pr/7"
    if has_safetensors:
        assert load_pretrained(*arguments).num_layers == 2
    else:  # then the pickled weights are requested
        (folder / "model.safetensors").unlink()
        with pytest.raises(FileNotFoundError, match="model.safetensors or pytorch_mod"):
            load_pretrained(*arguments)
        assert "pytorch_model.bin" in requests.pop()[1]["allow_patterns"]
    [(name, options)] = requests
    assert name == "Helsinki-NLP/opus-mt-en-de" and options["revision"] == "refs/pr/7"
    patterns = options["allow_patterns"]
    assert {"config.json", "model.safetensors", "target_vocab.json"} < set(patterns)
    assert not any("bin" in pattern for pattern in patterns)


def test_a_folder_takes_precedence(good, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", pytest.fail)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(good, "Helsinki-NLP/opus-mt-en-de")
    assert load_pretrained("Helsinki-NLP/opus-mt-en-de").num_layers == 2


@pytest.mark.parametrize("name", ["nothing", "/no/where", "../a/b", "a/b/c", "-/."])
def test_invalid_names(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", pytest.fail)
    with pytest.raises(FileNotFoundError, match="`folder` must be a folder, or a name"):
        load_pretrained(name)


def test_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = r"'a/b'` is not a folder on .* Hub it requires .*\"huggingface_hub>=1.0\""
    with pytest.raises(ModuleNotFoundError, match=message):
        load_pretrained("a/b")
