import json
import os
import shutil
import subprocess
import sys

import h5py
import huggingface_hub
import keras
import numpy as np
import pytest
import sentencepiece
from layer_contract import to_numpy, with_random_weights

import keras_transformer
from keras_transformer import Ensemble, LabelSmoothedCrossEntropy, Seq2Seq
from keras_transformer.text import (
    CharacterTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SIZES = {"num_layers": 1, "hidden_dim": 12, "intermediate_dim": 7, "num_heads": 2}
INPUTS = {
    "encoder_token_ids": np.array([[5, 6, 4, 3], [4, 3, 0, 0]]),
    "decoder_token_ids": np.array([[2, 4, 6], [2, 5, 0]]),
}
TEXTS = ["the cat", "", "log"]


def logits(model):
    return to_numpy(model(INPUTS))


@pytest.fixture(scope="module")
def model():
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=31)
    model = Seq2Seq(**SIZES, source_tokenizer=tokenizer, max_target_length=5)
    return with_random_weights(model)


@pytest.fixture(scope="module")
def saved_folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "preset"
    model.save_to_preset(folder)
    return folder


@pytest.fixture
def folder(saved_folder, tmp_path):
    """A copy, which the test may change."""
    return shutil.copytree(saved_folder, tmp_path / "preset")


def change(path, **entries):
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def test_a_folder_is_loaded_as_it_was_saved(model, folder):
    loaded = Seq2Seq.from_preset(str(folder))
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(logits(loaded), logits(model))
    assert not loaded.compiled
    found = loaded.source_tokenizer.tokenize(TEXTS).to_list()
    assert found == model.source_tokenizer.tokenize(TEXTS).to_list()


@pytest.mark.once("torch")
def test_others_can_open_the_files(model, folder):
    names = ["config.json", "metadata.json", "model.weights.h5"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *names,
        *("tokenizer.json", "tokenizer.model"),
    ]
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "tokenizer.model")
    )
    ids = model.source_tokenizer.tokenize(["the cat"]).to_list()[0]
    assert processor.encode("the cat") == ids
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata.pop("date_saved").endswith("+00:00")
    assert metadata == {
        "keras_transformer_version": keras_transformer.__version__,
        "keras_version": keras.__version__,
        "parameter_count": model.count_params(),
        "tokenizers": ["tokenizer.json"],
    }


@pytest.mark.once("torch")
def test_two_tokenizers_and_none(tmp_path):
    source = CharacterTokenizer([*SPECIAL, *"ab\n\u2028é"], lowercase=True)
    target = WordTokenizer([*SPECIAL, "X", "Ÿ"])
    model = Seq2Seq(**SIZES, source_tokenizer=source, target_tokenizer=target)
    model.save_to_preset(tmp_path / "two")
    assert "é" in (tmp_path / "two/source_tokenizer.json").read_text("utf-8")
    assert Seq2Seq.from_preset(tmp_path / "two").get_config() == model.get_config()

    model = Seq2Seq(**SIZES, vocabulary_size=11, dtype="mixed_bfloat16")
    model.save_to_preset(tmp_path / "none")
    loaded = Seq2Seq.from_preset(tmp_path / "none")
    assert loaded.source_tokenizer is None
    assert loaded.get_config() == model.get_config()


@pytest.mark.once("torch")
def test_a_compiled_model_leaves_its_optimizer_out(model, tmp_path):
    compiled = Seq2Seq.from_config(model.get_config())
    compiled.compile("adam", LabelSmoothedCrossEntropy())
    compiled.optimizer.build(compiled.trainable_variables)
    compiled.save_to_preset(tmp_path / "preset")
    assert "adam" not in (tmp_path / "preset/config.json").read_text().lower()
    with h5py.File(tmp_path / "preset/model.weights.h5") as file:
        assert "optimizer" not in file


@pytest.mark.once("torch")
def test_lora_is_saved_as_part_of_the_kernels(model, tmp_path):
    tuned = Seq2Seq.from_config(model.get_config())
    tuned.set_weights(model.get_weights())
    tuned.decoder.blocks[0].self_attention.query_dense.enable_lora(rank=2)
    with_random_weights(tuned)
    tuned.save_to_preset(tmp_path / "preset")
    loaded = Seq2Seq.from_preset(tmp_path / "preset")
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_allclose(logits(loaded), logits(tuned), atol=1e-5)


@pytest.mark.once("torch")
def test_without_its_weights(model, folder):
    (folder / "model.weights.h5").unlink()
    fresh = Seq2Seq.from_preset(folder, load_weights=False)
    assert fresh.get_config() == model.get_config()
    assert not np.allclose(logits(fresh), logits(model))
    larger = Seq2Seq.from_preset(folder, load_weights=False, num_layers=3)
    assert larger.num_layers == 3 and larger.source_tokenizer is not None


@pytest.mark.once("torch")
def test_overrides_that_leave_the_shapes(model, tmp_path):
    plain = Seq2Seq.from_config({**model.get_config(), "dropout": 0.0})
    plain.set_weights(model.get_weights())
    plain.save_to_preset(tmp_path / "preset")
    changes = {"dropout": 0.3, "max_source_length": 17, "name": "other"}
    changes["attention_options"] = {"dropout": 0.2}
    loaded = Seq2Seq.from_preset(tmp_path / "preset", **changes)
    assert {name: getattr(loaded, name) for name in changes} == changes
    np.testing.assert_array_equal(logits(loaded), logits(model))


@pytest.mark.once("torch")
def test_overrides_that_are_refused(folder):
    for changes in (
        {"intermediate_dim": 11},
        {"attention_options": {"num_key_value_heads": 1}},
    ):
        message = f"keep the shapes .*; received .* {[*changes][0]}"
        with pytest.raises(ValueError, match=message):
            Seq2Seq.from_preset(folder, **changes)
    for load_weights in (True, False):
        with pytest.raises(ValueError, match="no argument `num_layer`"):
            Seq2Seq.from_preset(folder, load_weights=load_weights, num_layer=2)


@pytest.mark.once("torch")
def test_missing_files(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="file metadata.json; there is none in"):
        Seq2Seq.from_preset(tmp_path / "empty")
    message = "a folder that `save_to_preset` wrote, or 'hf://user/name'; received"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(tmp_path / "none")
    for name in (
        "tokenizer.model",
        "tokenizer.json",
        "model.weights.h5",
        "config.json",
    ):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            Seq2Seq.from_preset(folder)
        (folder / name).write_bytes(content)


@pytest.mark.once("torch")
def test_a_missing_tokenizer_of_two(tmp_path):
    tokenizers = {
        "source_tokenizer": CharacterTokenizer([*SPECIAL, "a"]),
        "target_tokenizer": WordTokenizer([*SPECIAL, "X"]),
    }
    Seq2Seq(**SIZES, **tokenizers).save_to_preset(tmp_path / "two")
    (tmp_path / "two/target_tokenizer.json").unlink()
    message = "must have the file target_tokenizer.json; there is none in"
    for load_weights in (True, False):
        with pytest.raises(FileNotFoundError, match=message):
            Seq2Seq.from_preset(tmp_path / "two", load_weights=load_weights)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"config'),
        ("config.json", b"[" * 100_000),
        ("metadata.json", b"[1, 2]"),
        ("metadata.json", b'{"tokenizers": ["../tokenizer.json"]}'),
        ("tokenizer.json", b"\xff\xfe"),
        ("model.weights.h5", b""),
    ],
)
def test_a_damaged_file(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
def test_an_error_of_the_model_names_the_versions_of_keras(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())["config"]
    change(path, config={**config, "positions": {"class_name": "No"}})
    change(folder / "metadata.json", keras_version="3.2.1")
    message = f"Saved with Keras 3.2.1; this is Keras {keras.__version__}"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
def test_half_of_the_weights(folder):
    path = folder / "model.weights.h5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = f"model.weights.h5 must have the weights .* is Keras {keras.__version__}"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
def test_weights_of_another_model(folder, tmp_path, model):
    other = Seq2Seq.from_config({**model.get_config(), "intermediate_dim": 11})
    other.save_to_preset(tmp_path / "other")
    shutil.copy(tmp_path / "other/config.json", folder)
    with pytest.raises(ValueError, match="files of one model; .* in metadata.json"):
        Seq2Seq.from_preset(folder)
    shutil.copy(tmp_path / "other/metadata.json", folder)
    with pytest.raises(ValueError, match="model.weights.h5 must have the weights"):
        Seq2Seq.from_preset(folder)
    model.save_to_preset(tmp_path / "same")
    shutil.copy(tmp_path / "other/model.weights.h5", tmp_path / "same")
    with pytest.raises(ValueError, match="model.weights.h5 must have the weights"):
        Seq2Seq.from_preset(tmp_path / "same")


@pytest.mark.once("torch")
def test_versions(folder):
    """A folder of a later patch is read, one of a later minor version is not."""
    metadata, version = folder / "metadata.json", keras_transformer.__version__
    major, minor, *_ = map(int, version.split("."))
    change(metadata, keras_transformer_version=f"{major}.{minor}.99")
    Seq2Seq.from_preset(folder, load_weights=False)
    for later in (f"{major}.{minor + 1}.0", f"{major + 1}.0.0", f"{major}.{minor}0.0"):
        change(metadata, keras_transformer_version=later)
        message = f"saved by keras_transformer {later}, and this is {version}"
        with pytest.raises(ValueError, match=message):
            Seq2Seq.from_preset(folder)
    change(metadata, keras_transformer_version="new")
    with pytest.raises(ValueError, match=f"such as {version}; received 'new'"):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
def test_nothing_in_a_configuration_is_executed(folder, tmp_path):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    secret = tmp_path / "secret"
    hostile = {
        "os": {"module": "os", "class_name": "system", "config": f"touch {secret}"},
        "lambda": {
            "module": "builtins",
            "class_name": "function",
            "config": "eval",
            "registered_name": "function",
        },
        "code": {"class_name": "__lambda__", "config": {"value": "4wEAAAA="}},
    }
    for value in hostile.values():
        for name in ("positions", "activation"):
            changed = {**content["config"], name: value}
            path.write_text(json.dumps({**content, "config": changed}))
            with pytest.raises(ValueError, match="config.json"):
                Seq2Seq.from_preset(folder)
    assert not secret.exists()
    change(path, registered_name="os>system")
    with pytest.raises(ValueError, match="describe a Seq2Seq; received .*os>system"):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
def test_no_path_in_a_tokenizer_is_read(folder):
    for name, path in (
        ("SentencePieceTokenizer", "/etc/hostname"),
        ("SentencePieceTokenizer", "file:///etc/hostname"),
        ("../Seq2Seq", ""),
    ):
        config = {"class_name": name, "config": {"proto": path}}
        (folder / "tokenizer.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="tokenizer.json"):
            Seq2Seq.from_preset(folder)


class OnAFullDisk(Seq2Seq):
    """Fails while Keras writes the weights."""

    def save_own_variables(self, store):
        raise OSError("disk full")


@pytest.mark.once("torch")
def test_a_folder_is_written_whole_or_not_at_all(model, tmp_path):
    with pytest.raises(OSError, match="disk full"):
        OnAFullDisk(**SIZES, vocabulary_size=11).save_to_preset(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").write_text("")
    with pytest.raises(FileExistsError, match="`preset_dir` must be a new"):
        model.save_to_preset(tmp_path)
    with pytest.raises(TypeError, match="received a model of the class Ensemble. Save"):
        Ensemble([model]).save_to_preset(tmp_path / "preset")


@pytest.mark.once("torch")
def test_from_the_hub(model, folder, monkeypatch):
    asked = []

    def snapshot_download(repository, revision, allow_patterns):
        asked.append(repository)
        filter_paths = huggingface_hub.utils.filter_repo_objects
        names = [path.name for path in folder.iterdir()]
        kept = filter_paths([*names, "code.py"], allow_patterns=allow_patterns)
        assert sorted(kept) == sorted(names)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    loaded = Seq2Seq.from_preset("hf://user/en-de")
    assert asked == ["user/en-de"]
    np.testing.assert_array_equal(logits(loaded), logits(model))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError, match='install "huggingface_hub>='):
        Seq2Seq.from_preset("hf://user/en-de")


OTHER = {"tensorflow": "torch", "torch": "jax", "jax": "tensorflow"}


@pytest.mark.slow
def test_another_backend_reads_it(model, folder):
    """The other process prints the sum of the absolute logits."""
    inputs = {name: value.tolist() for name, value in INPUTS.items()}
    code = f"""
import numpy as np, keras
from keras_transformer import Seq2Seq
inputs = {{name: np.array(value) for name, value in {inputs}.items()}}
model = Seq2Seq.from_preset({str(folder)!r})
print(keras.backend.backend(), np.abs(keras.ops.convert_to_numpy(model(inputs))).sum())
"""
    other = OTHER[keras.backend.backend()]
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": other},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    backend, total = process.stdout.split()
    assert backend == other
    np.testing.assert_allclose(float(total), np.abs(logits(model)).sum(), rtol=1e-5)
