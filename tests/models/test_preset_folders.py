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
from designs import DESIGNS
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
    assert loaded.generate(TEXTS) == model.generate(TEXTS)
    assert not loaded.compiled


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


@pytest.mark.parametrize("name", DESIGNS)
def test_designs(name, tmp_path):
    model = Seq2Seq(**SIZES | DESIGNS[name](), vocabulary_size=11)
    with_random_weights(model).save_to_preset(tmp_path / "preset")
    loaded = Seq2Seq.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(logits(loaded), logits(model))


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


def test_a_compiled_model_leaves_its_optimizer_out(model, tmp_path):
    compiled = Seq2Seq.from_config(model.get_config())
    compiled.compile("adam", LabelSmoothedCrossEntropy())
    compiled.optimizer.build(compiled.trainable_variables)
    compiled.save_to_preset(tmp_path / "preset")
    assert "adam" not in (tmp_path / "preset/config.json").read_text().lower()
    with h5py.File(tmp_path / "preset/model.weights.h5") as file:
        assert "optimizer" not in file
    np.testing.assert_array_equal(
        logits(Seq2Seq.from_preset(tmp_path / "preset")), logits(compiled)
    )


def test_lora_is_saved_as_part_of_the_kernels(model, tmp_path):
    tuned = Seq2Seq.from_config(model.get_config())
    tuned.set_weights(model.get_weights())
    tuned.decoder.blocks[0].self_attention.query_dense.enable_lora(rank=2)
    with_random_weights(tuned)
    tuned.save_to_preset(tmp_path / "preset")
    loaded = Seq2Seq.from_preset(tmp_path / "preset")
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_allclose(logits(loaded), logits(tuned), atol=1e-5)


def test_without_its_weights(model, folder):
    (folder / "model.weights.h5").unlink()
    fresh = Seq2Seq.from_preset(folder, load_weights=False)
    assert fresh.get_config() == model.get_config()
    assert not np.allclose(logits(fresh), logits(model))
    larger = Seq2Seq.from_preset(folder, load_weights=False, num_layers=3)
    assert larger.num_layers == 3 and larger.source_tokenizer is not None


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
@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 2},
        {"intermediate_dim": 11},
        {"attention_options": {"num_key_value_heads": 1}},
        {"tie_embeddings": "none"},
    ],
    ids=str,
)
def test_overrides_that_need_other_weights(folder, changes):
    message = f"keep the shapes .*; received .* {[*changes][0]}"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(folder, **changes)


@pytest.mark.once("torch")
def test_an_unknown_override(folder):
    for load_weights in (True, False):
        with pytest.raises(ValueError, match="'num_layer'"):
            Seq2Seq.from_preset(folder, load_weights=load_weights, num_layer=2)


@pytest.mark.once("torch")
def test_a_folder_that_is_no_preset(tmp_path):
    with pytest.raises(FileNotFoundError, match="file metadata.json; there is none in"):
        Seq2Seq.from_preset(tmp_path)
    message = "a folder that `save_to_preset` wrote, or 'hf://user/name'; received"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(tmp_path / "none")


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "name", ["config.json", "model.weights.h5", "tokenizer.json", "tokenizer.model"]
)
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_missing_tokenizer_of_two(tmp_path, side):
    tokenizers = {
        "source_tokenizer": CharacterTokenizer([*SPECIAL, "a"]),
        "target_tokenizer": WordTokenizer([*SPECIAL, "X"]),
    }
    Seq2Seq(**SIZES, **tokenizers).save_to_preset(tmp_path / "two")
    (tmp_path / f"two/{side}_tokenizer.json").unlink()
    message = f"must have the file {side}_tokenizer.json; there is none in"
    for load_weights in (True, False):
        with pytest.raises(FileNotFoundError, match=message):
            Seq2Seq.from_preset(tmp_path / "two", load_weights=load_weights)


def test_older_folders_do_not_list_their_tokenizers(model, folder):
    path = folder / "metadata.json"
    content = json.loads(path.read_text())
    del content["tokenizers"]
    path.write_text(json.dumps(content))
    assert Seq2Seq.from_preset(folder).get_config() == model.get_config()
    (folder / "tokenizer.json").unlink()
    assert Seq2Seq.from_preset(folder).source_tokenizer is None


@pytest.mark.once("torch")
@pytest.mark.parametrize("names", ["tokenizer.json", ["../tokenizer.json"], [[]], 3])
def test_a_list_of_other_tokenizers(folder, names):
    change(folder / "metadata.json", tokenizers=names)
    with pytest.raises(ValueError, match="`tokenizers` in .* must be a list of names"):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "name", ["config.json", "metadata.json", "tokenizer.json", "model.weights.h5"]
)
@pytest.mark.parametrize(
    "content", [b"", b'{"config', b"[1, 2]", b"\xff\xfe", b"[" * 100_000]
)
def test_a_damaged_file(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        Seq2Seq.from_preset(folder)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "entry", [{"positions": {"class_name": "No"}}, {"num_layers": -1}], ids=str
)
def test_an_error_of_the_model_names_the_versions_of_keras(folder, entry):
    path = folder / "config.json"
    config = json.loads(path.read_text())["config"]
    change(path, config={**config, **entry})
    change(folder / "metadata.json", keras_version="3.2.1")
    message = f"Saved with Keras 3.2.1; this is Keras {keras.__version__}"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(folder)


def test_half_of_the_weights(folder):
    path = folder / "model.weights.h5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = f"model.weights.h5 must have the weights .* is Keras {keras.__version__}"
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset(folder)


@pytest.mark.parametrize("change", [{"num_layers": 2}, {"intermediate_dim": 11}])
def test_weights_of_another_model(folder, tmp_path, model, change):
    config = model.get_config()
    other = Seq2Seq.from_config({**config, **change})
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
def test_versions(folder, monkeypatch):
    metadata = folder / "metadata.json"
    for version in ("0.3.0", "0.3.7", "0.2.1"):
        change(metadata, keras_transformer_version=version)
        monkeypatch.setattr(keras_transformer, "__version__", "0.3.1")
        Seq2Seq.from_preset(folder, load_weights=False)
    for version in ("0.4.0", "1.0.0", "0.10.0"):
        change(metadata, keras_transformer_version=version)
        message = f"saved by keras_transformer {version}, and this is 0.3.1"
        with pytest.raises(ValueError, match=message):
            Seq2Seq.from_preset(folder)
    change(metadata, keras_transformer_version="new")
    with pytest.raises(ValueError, match="such as 0.3.1; received 'new'"):
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
@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "file:///etc/hostname"])
def test_no_path_in_a_tokenizer_is_read(folder, path):
    config = {"class_name": "SentencePieceTokenizer", "config": {"proto": path}}
    (folder / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="tokenizer.json"):
        Seq2Seq.from_preset(folder)
    config["class_name"] = "../Seq2Seq"
    (folder / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="tokenizer.json"):
        Seq2Seq.from_preset(folder)


def test_a_folder_is_written_whole_or_not_at_all(model, tmp_path, monkeypatch):
    def fail(self, filepath, overwrite):
        filepath.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, "save_weights", fail)
        with pytest.raises(OSError, match="disk full"):
            model.save_to_preset(tmp_path / "new" / "preset")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").write_text("")
    with pytest.raises(FileExistsError, match="`preset_dir` must be a new"):
        model.save_to_preset(tmp_path)


def test_an_ensemble_is_refused(model, tmp_path):
    with pytest.raises(
        TypeError, match="received a model of the class Ensemble. Save each"
    ):
        Ensemble([model]).save_to_preset(tmp_path / "preset")


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


@pytest.mark.once("torch")
def test_the_hub_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError, match='install "huggingface_hub>='):
        Seq2Seq.from_preset("hf://user/en-de")


OTHER = {"tensorflow": "torch", "torch": "jax", "jax": "tensorflow"}


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
