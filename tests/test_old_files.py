"""Files of version 0.1.0 load, give the same outputs and continue.

`files_of_0_1/make.py` wrote the files and the expected results with the code of that
version. Neither changes. The files hold names of that version, such as the module
`keras_transformer.seq2seq` and the option `consistency`. They load without a warning.
"""

import csv
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from layer_contract import to_numpy

from keras_transformer import (
    BeamSearch,
    Checkpoints,
    Seq2Seq,
    Tokenizer,
    parallel_dataset,
    translate_file,
)
from keras_transformer.recipe import Recipe, read_options, result, train

FOLDER = pathlib.Path(__file__).parent / "files_of_0_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
INPUTS = {name: np.array(ids) for name, ids in EXPECTED["inputs"].items()}


def load(name):
    return keras.saving.load_model(FOLDER / name)


def assert_close(actual, expected, atol=1e-4):
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def plain():
    return load("plain.keras")


@pytest.mark.parametrize("name", ["plain", "options", "ensemble"])
def test_a_model_file(name):
    model = load(f"{name}.keras")
    assert_close(model(INPUTS), EXPECTED["logits"][name])


def test_a_preset_folder():
    model = Seq2Seq.from_preset(str(FOLDER / "preset"))
    assert_close(model(INPUTS), EXPECTED["logits"]["preset"])
    assert type(model.source_tokenizer).__name__ == "SentencePieceTokenizer"
    assert type(model.target_tokenizer).__name__ == "WordTokenizer"


def test_a_keras_model_of_layers():
    model = load("layers.keras")
    assert_close(model(np.array(EXPECTED["numbers"])), EXPECTED["layers"])
    frozen = [layer.name for layer in model.layers if not layer.trainable]
    assert frozen == ["encoder_block"]


def test_texts_and_scores(plain):
    expected = EXPECTED["generated"]
    texts, scores = plain.generate(
        expected["sources"], BeamSearch(3, 0.6), return_scores=True
    )
    assert texts == expected["texts"]
    assert_close(scores, expected["scores"])


def test_compile_arguments_of_a_model(plain):
    config = plain.get_compile_config()
    assert config["r_drop"] == 0.5  # `consistency` in the file
    assert config["micro_batches"] == 2
    assert plain.loss.label_smoothing == 0.05
    assert int(plain.optimizer.iterations) == EXPECTED["iterations"]
    assert [metric.name for metric in plain.metrics] == EXPECTED["metrics"]


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", EXPECTED["tokenizers"])
def test_a_tokenizer(name):
    tokenizer = Tokenizer.load(FOLDER / f"{name}.json")
    expected = EXPECTED["tokenizers"][name]
    rows = tokenizer.tokenize(EXPECTED["texts"], add_end=True)
    assert rows.to_list() == expected["ids"]
    texts = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
    assert texts == expected["texts"]


@pytest.mark.once("torch")
def test_a_process_that_has_imported_only_the_package():
    """A file names modules of version 0.1.0, which may not exist any more."""
    code = (
        "import keras, keras_transformer\n"
        f"model = keras.saving.load_model({str(FOLDER / 'ensemble.keras')!r})\n"
        "print(type(model.target_tokenizer).__name__)"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stdout == "WordTokenizer\n", process.stderr


class Losses(keras.callbacks.Callback):
    """Lists the mean loss of the epoch so far after each batch."""

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def test_checkpoints_of_a_stopped_fit(tmp_path):
    """The losses and the weights are those of a `fit` that was not stopped."""
    shutil.copytree(FOLDER / "checkpoints", tmp_path / "checkpoints")
    model = load("plain.keras")
    data = parallel_dataset(
        FOLDER / "train.tsv",
        source_tokenizer=model.source_tokenizer,
        target_tokenizer=model.target_tokenizer,
        tokens_per_batch=60,
        window=17,
        batches_per_epoch=6,
        max_source_length=8,
        max_target_length=8,
        max_shapes=2,
        seed=5,
    )
    losses = Losses()
    early_stopping = keras.callbacks.EarlyStopping("loss", patience=3)
    checkpoints = Checkpoints(tmp_path / "checkpoints", data, save_every=2, keep=1)
    model.fit(
        data.dataset,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[losses, early_stopping, checkpoints],
    )
    expected = EXPECTED["fit"]
    assert data.batches_per_epoch == expected["batches_per_epoch"]
    done = 1 * data.batches_per_epoch + 2  # It was stopped in the second epoch.
    assert_close(losses.losses, expected["losses"][done:])
    assert_close(model(INPUTS), expected["logits"], atol=1e-3)


def copy_run(name, folder):
    """Copies the folder of a run, with paths of the copy in `options.toml`."""
    for file in ("train.tsv", "valid.tsv"):
        shutil.copy(FOLDER / file, folder)
    shutil.copytree(FOLDER / name, folder / name)
    options = folder / name / "options.toml"
    options.write_text(options.read_text().replace("/folder", str(folder)))
    return folder / name


@pytest.mark.once
def test_a_stopped_run_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(result, "LENGTH_PENALTIES", (0.0,))  # the one that is chosen
    folder = copy_run("stopped", tmp_path)
    trained = train(Recipe(**read_options(folder / "options.toml")))
    expected = EXPECTED["run"]
    rows = list(csv.DictReader((folder / "history.csv").read_text().splitlines()))
    others = list(csv.DictReader(expected["history"].splitlines()))
    for name in ("loss", "val_loss", "val_bleu", "val_chrf", "learning_rate"):
        values = [float(row[name]) for row in rows]
        assert_close(values, [float(other[name]) for other in others])
    epochs = [int(row["epoch"]) for row in rows]
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
    assert trained.figures.chrf == pytest.approx(expected["figures"]["chrf"])
    assert_close(trained.model(INPUTS), expected["logits"], atol=1e-3)


@pytest.mark.once("torch")
def test_a_run_of_the_command_that_has_ended(tmp_path):
    folder = copy_run("ended", tmp_path)
    trained = train(Recipe(**read_options(folder / "options.toml")))
    expected = dict(EXPECTED["run"]["figures"])
    expected["valid_scores"] = expected.pop("valid_bleu")
    figures = dataclasses.asdict(trained.figures)
    assert {name: figures[name] for name in expected} == expected
    assert figures["metric"] == "bleu" and figures["exact_match"] is None
    assert_close(trained.model(INPUTS), EXPECTED["run"]["logits"])
    assert not (folder / "checkpoints").exists()  # It was not made again.


def test_a_stopped_translation(plain, tmp_path):
    for name in ("source.txt", "target.txt.unfinished", "target.txt.unfinished.json"):
        shutil.copy(FOLDER / name, tmp_path)
    record = json.loads((tmp_path / "target.txt.unfinished.json").read_text())
    assert record["lines"] == 3
    translate_file(
        plain,
        tmp_path / "source.txt",
        tmp_path / "target.txt",
        search=BeamSearch(3, 0.6),
        window=3,
        verbose=0,
    )
    assert (tmp_path / "target.txt").read_text() == EXPECTED["translation"]
