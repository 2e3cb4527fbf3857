import csv
import json
import pathlib

import keras
import numpy as np
import pytest

from keras_transformer import Tokenizer
from keras_transformer.recipe import Recipe, read_options, run, train
from keras_transformer.recipe.history_file import HistoryFile
from keras_transformer.seq2seq import PRESETS

TOY = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}


def write_pairs(path, count, seed):
    """Made-up parallel text: the target has the words backwards, upside down."""
    random = np.random.default_rng(seed)
    words = ["ka", "lo", "mi", "nu", "pe", "so"]
    rows = [[str(word) for word in random.choice(words, 5)] for _ in range(count)]
    pairs = [(" ".join(row), " ".join(row[::-1]).upper()) for row in rows]
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    for suffix, side in {".source": 0, ".target": 1}.items():
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        path.with_suffix(suffix).write_text(lines, "utf-8")


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "transformer_tiny", TOY)
    monkeypatch.setattr(run, "LENGTH_PENALTIES", (0.0, 0.6))
    for seed, (part, count) in enumerate({"train": 199, "valid": 7, "test": 5}.items()):
        write_pairs(tmp_path / f"{part}.tsv", count, seed)
    return {
        "train": [str(tmp_path / "train.source"), str(tmp_path / "train.target")],
        "valid": [str(tmp_path / "valid.tsv")],
        "test": [str(tmp_path / "test.tsv")],
        "output": str(tmp_path / "results"),
        "vocabulary_size": 37,
        "num_beams": 2,
        "tokens_per_batch": 256,
        "warmup_steps": 5,
        "attention_dropout": 0.05,
        "cooldown": 0,
        "export": False,
        "verbose": 0,
    }


def read_history(folder):
    with (folder / "history.csv").open() as history:
        return list(csv.DictReader(history))


def test_a_run_leaves_what_it_says_and_goes_on(options, tmp_path):
    results = tmp_path / "results"
    _, search, figures = train(Recipe(**options, epochs=1))
    assert figures["sentences"] == 5 and 0 <= figures["bleu"] <= 100
    assert "tok:13a" in figures["bleu_signature"]
    best = max(figures["valid_bleu"], key=figures["valid_bleu"].get)
    assert search.num_beams == 2 and figures["length_penalty"] == float(best)
    assert json.loads((results / "figures.json").read_text()) == figures
    assert Tokenizer.load(results / "tokenizer.json").vocabulary_size == 37

    written = read_options(results / "options.toml")
    trained = train(Recipe(**{**written, "epochs": 2}))
    epochs = read_history(results)
    assert [row["epoch"] for row in epochs] == ["0", "1"]
    assert float(epochs[1]["loss"]) < float(epochs[0]["loss"])
    assert read_options(results / "options.toml")["epochs"] == 2
    model = keras.saving.load_model(results / "model.keras")
    assert model.normalize_first and model.attention_options == {"dropout": 0.05}
    texts = ["ka lo", "mi"]
    assert model.generate(texts, search) == trained.model.generate(texts, search)

    message = "`label_smoothing` must be .* 0.1 in .*; received `label_smoothing=0.2`"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, label_smoothing=0.2))


def test_a_run_that_never_began_may_begin_with_other_options(
    options, tmp_path, monkeypatch
):
    def fail(*args):
        raise MemoryError("all of it")

    monkeypatch.setattr(run, "_fit", fail)
    for size in (37, 31):
        options["vocabulary_size"] = size
        with pytest.raises(MemoryError):
            train(Recipe(**options))
        results = tmp_path / "results"
        assert read_options(results / "options.toml")["vocabulary_size"] == size
        assert Tokenizer.load(results / "tokenizer.json").vocabulary_size == size


def test_figures_of_some_epochs_alone(options, tmp_path):
    for epochs in (1, 3):
        train(Recipe(**options, epochs=epochs, bleu_every=2))
    rows = read_history(tmp_path / "results")
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [row["val_bleu"] != "" for row in rows] == [False, True, False]
    assert all(float(row["val_perplexity"]) > 1 for row in rows)


def test_rows_of_epochs_that_are_made_again_are_replaced(tmp_path):
    path = tmp_path / "history.csv"
    for epoch, loss in [(0, 5.0), (1, 4.0), (2, 3.0), (1, 2.5)]:
        HistoryFile(path).on_epoch_end(epoch, {"loss": loss})
    assert path.read_text().split() == ["epoch,loss", "0,5.0", "1,2.5"]


@pytest.mark.parametrize("name", ["valid", "test"])
def test_a_line_that_is_too_long_is_found_first(options, tmp_path, name):
    path = pathlib.Path(options[name][0])
    path.write_text(path.read_text() + f"{'ka ' * 30}\tKA\n")
    message = f"`{name}` must have at most `max_length=24` .*; received .* in line"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, max_length=24))
    assert not (tmp_path / "results/checkpoints").exists()


def test_a_missing_test_text_is_found_first(options, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(Recipe(**{**options, "test": ["nowhere.tsv"]}))
    assert not (tmp_path / "results").exists()


def test_a_model_that_cannot_be_judged_is_kept(options, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_judge", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(Recipe(**options, epochs=1))
    assert keras.saving.load_model(tmp_path / "results/model.keras").generate(["ka"])


# One of them each where compilers take a minute for it.
HALF_PRECISIONS = {"tensorflow": ["mixed_float16"], "jax": ["mixed_bfloat16"]}.get(
    keras.backend.backend(), ["mixed_float16", "mixed_bfloat16"]
)


@pytest.mark.parametrize("dtype", HALF_PRECISIONS)
def test_half_precision_ends_in_a_float32_model(options, tmp_path, dtype):
    results = tmp_path / "results"
    options = {**options, "epochs": 2, "average": 1}
    train(Recipe(**{**options, "output": str(tmp_path / "float32")}))
    model = train(Recipe(**options, dtype=dtype)).model
    exact, half = (
        [float(row["loss"]) for row in read_history(tmp_path / folder)]
        for folder in ("float32", "results")
    )
    assert half != exact
    np.testing.assert_allclose(half, exact, rtol=0.01)

    saved = keras.saving.load_model(results / "model.keras")
    assert saved.dtype_policy.name == model.dtype_policy.name == "float32"
    pairs = pathlib.Path(options["valid"][0]).read_text().splitlines()
    sources, targets = zip(*(pair.split("\t") for pair in pairs), strict=True)
    scores = saved.score(list(sources), list(targets))
    perplexity = np.exp(-np.sum(scores.scores) / np.sum(scores.lengths))
    validated = float(read_history(results)[-1]["val_perplexity"])
    assert perplexity == pytest.approx(validated, rel=0.01)


def test_a_history_that_cannot_be_written_ends_no_run(tmp_path):
    history = HistoryFile(tmp_path / "missing" / "history.csv")
    with pytest.warns(UserWarning, match="history.csv lacks epoch 0: .* goes on"):
        history.on_epoch_end(0, {"loss": 1.0})
    path = tmp_path / "history.csv"
    path.write_text("loss\n5.0\n")
    with pytest.warns(UserWarning, match=r"history.csv lacks epoch 1: KeyError"):
        HistoryFile(path).on_epoch_end(1, {"loss": 1.0})
    path.write_text("\ufeffepoch,loss\n0,5.0\n", "utf-8")  # as spreadsheets do
    HistoryFile(path).on_epoch_end(1, {"loss": 4.0})
    assert path.read_text().split() == ["epoch,loss", "0,5.0", "1,4.0"]


@pytest.mark.parametrize("epochs, done, warns", [(6, 4, 1), (6, 3, 0), (4, 3, 1)])
def test_another_end_once_the_rate_has_begun_to_fall(epochs, done, warns, recwarn):
    """The run was for 5 epochs, with the fall in the last two."""
    files = {"train": ["a"], "valid": ["b"], "output": "c"}
    recipe = Recipe(**files, epochs=epochs, cooldown=2)
    run._warn_of_another_end(recipe, 5, done)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == warns
    assert all(f"`epochs={epochs}` comes when" in message for message in messages)


def test_only_numbers_are_versions(tmp_path):
    for name in ("2", "7-old", "notes"):
        (tmp_path / name).mkdir()
    assert run._next_version(tmp_path).name == "3"


@pytest.mark.parametrize("name, value", [("preset", "tiny"), ("dtype", "float16")])
def test_an_unknown_name_is_found_first(options, name, value, tmp_path):
    with pytest.raises(
        ValueError, match=f"`{name}` must be one of .*`{name}='{value}'"
    ):
        train(Recipe(**options, **{name: value}))
    assert not (tmp_path / "results").exists()
