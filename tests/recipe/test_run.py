import csv
import json

import keras
import numpy as np
import pytest

from keras_transformer import Tokenizer
from keras_transformer.recipe import Recipe, read_options, run, train
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
        "export": False,
        "verbose": 0,
    }


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
    with (results / "history.csv").open() as history:
        epochs = list(csv.DictReader(history))
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


def test_a_run_that_never_began_may_begin_with_other_options(options, tmp_path):
    with pytest.raises(ValueError, match="micro_batches"):
        train(Recipe(**options, micro_batches=0))
    assert [path.name for path in (tmp_path / "results").iterdir()] == [
        "tokenizer.json"
    ]
    options["vocabulary_size"] = 31
    with pytest.raises(ValueError, match="micro_batches"):
        train(Recipe(**options, micro_batches=0))
    assert Tokenizer.load(tmp_path / "results/tokenizer.json").vocabulary_size == 31


def test_an_unknown_preset_is_found_first(options, tmp_path):
    with pytest.raises(ValueError, match="`preset` must be one of .*`preset='tiny'`"):
        train(Recipe(**options, preset="tiny"))
    assert not (tmp_path / "results").exists()
