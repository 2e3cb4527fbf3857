import csv
import dataclasses
import json
import pathlib
import shutil
import tomllib

import keras
import numpy as np
import pytest

from keras_transformer import (
    SentencePieceTokenizer,
    Seq2Seq,
    Tokenizer,
    TranslationQuality,
    distribute,
)
from keras_transformer.layers import LearnedPositionalEncoding
from keras_transformer.models import PRESETS
from keras_transformer.recipe import (
    Recipe,
    read_options,
    result,
    run,
    train,
    translation,
)
from keras_transformer.recipe.history_file import HistoryFile
from keras_transformer.recipe.preparation import prepare_run
from keras_transformer.recipe.progress import Reporter

TOY = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}


def write_pairs(path, count, seed):
    """Writes parallel text; the target has the words reversed and in upper case."""
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
    monkeypatch.setattr(result, "LENGTH_PENALTIES", (0.6,))
    for seed, (part, count) in enumerate({"train": 199, "valid": 7, "test": 5}.items()):
        write_pairs(tmp_path / f"{part}.tsv", count, seed)
    return {
        "train": [str(tmp_path / "train.source"), str(tmp_path / "train.target")],
        "valid": [str(tmp_path / "valid.tsv")],
        "test": [str(tmp_path / "test.tsv")],
        "output": str(tmp_path / "results"),
        "vocabulary_size": 37,
        "tokenizer": "bpe",
        "max_length": 24,  # of outputs too: a search has as many steps
        "num_beams": 2,
        "tokens_per_batch": 256,
        "warmup_steps": 5,
        "attention_dropout": 0.05,
        "cooldown": 0,
        "average": 10,
        "export": False,
        "verbose": 0,
    }


@pytest.fixture
def without_search(monkeypatch):
    """Replaces searches, which take long to compile, where no output matters."""

    def generate(self, inputs, *args, **options):
        return [text.upper() for text in inputs]

    monkeypatch.setattr(Seq2Seq, "generate", generate)


def read_history(folder):
    with (folder / "history.csv").open() as history:
        return list(csv.DictReader(history))


@pytest.mark.once("torch")
def test_a_run_writes_its_files_and_is_resumed(options, tmp_path, monkeypatch):
    monkeypatch.setattr(result, "LENGTH_PENALTIES", (0.0, 0.6))
    results = tmp_path / "results"
    _, search, figures = train(Recipe(**options, epochs=1))
    assert figures.sentences == 5 and 0 <= figures.bleu <= 100
    assert "tok:13a" in figures.bleu_signature
    best = max(figures.valid_scores, key=figures.valid_scores.get)
    assert search.num_beams == 2 and figures.length_penalty == float(best)
    assert figures.metric == "bleu" and figures.weights == "epoch 1, the last"
    written = json.loads((results / "figures.json").read_text())
    assert written == dataclasses.asdict(figures)
    assert Tokenizer.load(results / "tokenizer.json").vocabulary_size == 37

    written = read_options(results / "options.toml")
    trained = train(Recipe(**{**written, "epochs": 2}))
    epochs = read_history(results)
    assert [row["epoch"] for row in epochs] == ["1", "2"]
    assert float(epochs[1]["loss"]) < float(epochs[0]["loss"])
    assert read_options(results / "options.toml")["epochs"] == 2
    model = keras.saving.load_model(results / "model.keras")
    assert model.normalize_first and model.attention_options == {"dropout": 0.05}
    texts = ["ka lo", "mi"]
    assert model.generate(texts, search) == trained.model.generate(texts, search)

    message = "`label_smoothing` must be .* 0.1 in .*; received `label_smoothing=0.2`"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, label_smoothing=0.2))


@pytest.mark.slow
@pytest.mark.once("torch")
def test_a_complete_run_is_read(options, tmp_path, monkeypatch):
    results = tmp_path / "results"
    model, search, figures = train(Recipe(**options, epochs=1))

    def fail(*args):
        raise MemoryError("all of it")

    monkeypatch.setattr(run, "fit", fail)
    again = train(Recipe(**options, epochs=1))
    assert (repr(again.search), again.figures) == (repr(search), figures)
    assert again.model.generate(["ka lo"]) == model.generate(["ka lo"])
    with pytest.raises(MemoryError):
        train(Recipe(**options, epochs=2))
    assert not (results / "figures.json").exists()
    assert read_options(results / "options.toml")["epochs"] == 2


@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_a_run_without_its_export_is_not_complete(options, monkeypatch):
    exported = []

    def fail(*args, **further):
        exported.append(args)
        raise OSError("the disk is full")

    monkeypatch.setattr(Seq2Seq, "export", fail)
    options |= {"export": True, "epochs": 1}
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is full"):
            train(Recipe(**options))
    assert len(exported) == 2


@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_fewer_epochs_end_a_run_at_its_position(options, tmp_path):
    results = tmp_path / "results"
    train(Recipe(**options, epochs=2))
    (results / "figures.json").unlink()
    path = results / "options.toml"
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 5"))
    trained = train(Recipe(**options, epochs=2))
    assert result.Figures.read(results / "figures.json") == trained.figures
    assert len(read_history(results)) == 2


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_init_starts_from_a_trained_model(options, tmp_path):
    first = train(Recipe(**options, epochs=1)).model
    first.save_to_preset(tmp_path / "preset")
    del options["vocabulary_size"], options["tokenizer"]
    further = {**options, "epochs": 1, "dropout": 0.0, "max_length": 31}
    losses = []
    for init in (tmp_path / "results", tmp_path / "preset"):
        output = tmp_path / "from" / init.name
        recipe = Recipe(**{**further, "output": output}, init=init)
        model = train(recipe).model
        assert not (output / "tokenizer.json").exists()
        losses += [float(row["val_loss"]) for row in read_history(output)]
        assert model.max_source_length == 31 and model.dropout == 0
        assert (
            model.source_tokenizer.get_config() == first.source_tokenizer.get_config()
        )
    (before,) = [float(row["val_loss"]) for row in read_history(tmp_path / "results")]
    assert losses[0] == losses[1] < before
    shutil.rmtree(init)  # The run keeps a copy.
    train(Recipe(**{**further, "output": output, "epochs": 2}, init=init))
    assert [row["epoch"] for row in read_history(output)] == ["1", "2"]
    assert isinstance(model, Seq2Seq)


@pytest.mark.once("torch")
def test_init_must_be_trainable(options, tmp_path):
    del options["vocabulary_size"], options["tokenizer"]
    with pytest.raises(FileNotFoundError, match="letters.keras does not exist"):
        train(Recipe(**options, init=tmp_path / "letters.keras"))
    Seq2Seq(**TOY, vocabulary_size=11).save(tmp_path / "letters.keras")
    message = "`init` must be a model that can .* tokenizers; .*letters.keras'`, which"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, init=tmp_path / "letters.keras"))
    tokenizer = SentencePieceTokenizer.train(options["train"], vocabulary_size=37)
    positions = LearnedPositionalEncoding(19)
    short = Seq2Seq(**TOY, source_tokenizer=tokenizer, positions=positions)
    short.save(tmp_path / "short.keras")
    message = "`max_length` must be at most 19, .*; received `max_length=24`"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, init=tmp_path / "short.keras"))


@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_patience_ends_a_run(options, tmp_path):
    options |= {"learning_rate": 1e-12, "epochs": 5, "patience": 2, "metric": "loss"}
    for _ in range(2):  # the second run is read
        train(Recipe(**options))
        assert len(read_history(tmp_path / "results")) == 3


@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_warns_of_a_long_warmup(options):
    options |= {"warmup_steps": 1000, "epochs": 1}
    with pytest.warns(UserWarning, match="`warmup_steps=1000` is greater than .* "):
        train(Recipe(**options))
    pathlib.Path(options["output"], "figures.json").unlink()
    train(Recipe(**options))  # No warning: the learning rate has been used.


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_identity_normalization_and_bleu_of_characters(options, tmp_path, monkeypatch):
    qualities = []

    class Quality(TranslationQuality):
        def __init__(self, *args, **further):
            super().__init__(*args, **further)
            qualities.append(self)

    monkeypatch.setattr(translation, "TranslationQuality", Quality)
    options |= {"normalization": "identity", "character_coverage": 0.99}
    with open(options["train"][0], "a", encoding="utf-8") as source:
        source.write("½ ka\n")
    with open(options["train"][1], "a", encoding="utf-8") as target:
        target.write("KA½\n")
    trained = train(Recipe(**options, epochs=1, bleu_tokenize="char"))
    assert "tok:char" in trained.figures.bleu_signature
    assert [quality.tokenize for quality in qualities] == ["char"]
    vocabulary = trained.model.source_tokenizer.get_vocabulary()
    assert not {"½", "⁄"} & {character for piece in vocabulary for character in piece}
    path = tmp_path / "results/tokenizer.json"
    path.unlink()
    message = "`tokenize` must be one of sacreBLEU's .*; received `tokenize='klingon'`"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, bleu_tokenize="klingon"))
    assert not path.exists()


@pytest.mark.once("torch")
def test_options_may_change_before_the_first_checkpoint(options, tmp_path, monkeypatch):
    def fail(*args):
        raise MemoryError("all of it")

    monkeypatch.setattr(run, "fit", fail)
    for size in (37, 31):
        options["vocabulary_size"] = size
        with pytest.raises(MemoryError):
            train(Recipe(**options))
        results = tmp_path / "results"
        assert read_options(results / "options.toml")["vocabulary_size"] == size
        assert Tokenizer.load(results / "tokenizer.json").vocabulary_size == size


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_history_of_metrics_of_every_second_epoch(options, tmp_path):
    for epochs in (1, 3):
        train(Recipe(**options, epochs=epochs, metric_every=2))
    rows = read_history(tmp_path / "results")
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [row["val_bleu"] != "" for row in rows] == [True, True, False]
    assert all(float(row["val_perplexity"]) > 1 for row in rows)


@pytest.mark.once("torch")
def test_history_replaces_rows_of_repeated_epochs(tmp_path):
    path = tmp_path / "history.csv"
    for epoch, loss in [(0, 5.0), (1, 4.0), (2, 3.0), (1, 2.5)]:
        HistoryFile(path).on_epoch_end(epoch, {"loss": loss})
    assert path.read_text().split() == ["epoch,loss", "1,5.0", "2,2.5"]


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", ["valid", "test"])
def test_long_lines_are_refused_before_training(options, tmp_path, name):
    path = pathlib.Path(options[name][0])
    path.write_text(path.read_text() + f"{'ka ' * 30}\tKA\n")
    message = f"`{name}` must have at most `max_length=24` .*; received .* in line"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options))
    assert not (tmp_path / "results/checkpoints").exists()


@pytest.mark.once("torch")
@pytest.mark.parametrize("model", ["seq2seq", "causal"])
def test_long_lines_are_left_out_if_they_are_held_out(options, model):
    for path, word in zip(options["train"], ("ka", "KA"), strict=True):
        lines = "".join(f"{' '.join([word] * n)}\n" for n in range(30, 50))
        pathlib.Path(path).write_text(lines + pathlib.Path(path).read_text())
    options |= {"valid": 0.4, "test": 0.4}
    if model == "causal":
        options |= {"model": "causal", "documents": "pairs"}
        del options["num_beams"]
    with pytest.warns(UserWarning, match="[1-9] test pairs are longer than"):
        evaluator = prepare_run(Recipe(**options), Reporter(0)).evaluator
    assert {len(text.split()) for text in evaluator.check_texts} == {5}


@pytest.mark.once("torch")
def test_a_missing_test_text_is_refused_before_training(options, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(Recipe(**{**options, "test": ["nowhere.tsv"]}))
    assert not (tmp_path / "results").exists()


@pytest.mark.once("torch")
def test_the_model_is_saved_before_its_evaluation(options, tmp_path, monkeypatch):
    monkeypatch.setattr(translation, "evaluate_model", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(Recipe(**options, epochs=1))
    assert keras.saving.load_model(tmp_path / "results/model.keras").generate(["ka"])


# TensorFlow and JAX compile half precision for a minute: one dtype each.
HALF_PRECISIONS = {"tensorflow": ["mixed_float16"], "jax": ["mixed_bfloat16"]}.get(
    keras.backend.backend(), ["mixed_float16", "mixed_bfloat16"]
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF_PRECISIONS)
@pytest.mark.usefixtures("without_search")
def test_half_precision_gives_a_float32_model(options, tmp_path, dtype):
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


@pytest.mark.once("torch")
def test_history_warns_if_it_cannot_be_written(tmp_path):
    history = HistoryFile(tmp_path / "missing" / "history.csv")
    with pytest.warns(UserWarning, match="Epoch 1 is missing in .* continues"):
        history.on_epoch_end(0, {"loss": 1.0})
    path = tmp_path / "history.csv"
    path.write_text("loss\n5.0\n")
    with pytest.warns(UserWarning, match="Epoch 2 is missing in .*: KeyError"):
        HistoryFile(path).on_epoch_end(1, {"loss": 1.0})
    path.write_text("\ufeffepoch,loss\n1,5.0\n", "utf-8")  # as spreadsheets write it
    HistoryFile(path).on_epoch_end(1, {"loss": 4.0})
    assert path.read_text().split() == ["epoch,loss", "1,5.0", "2,4.0"]


@pytest.mark.once("torch")
@pytest.mark.parametrize("name, value", [("preset", "tiny"), ("dtype", "float16")])
def test_unknown_names_are_refused_before_training(options, name, value, tmp_path):
    with pytest.raises(
        ValueError, match=f"`{name}` must be one of .*`{name}='{value}'"
    ):
        train(Recipe(**options, **{name: value}))
    assert not (tmp_path / "results").exists()


@pytest.mark.once("torch")
def test_unequal_line_counts_are_refused_before_training(options, tmp_path):
    short = tmp_path / "short.target"
    short.write_text("KA LO\n", "utf-8")
    options |= {"train": [options["train"][0], str(short)], "vocabulary_size": 9999}
    message = "same number of lines; received 199 in .*source` and 1 in .*short.target"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options))
    assert not (tmp_path / "results/tokenizer.json").exists()


# Options that the text determines.


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.usefixtures("without_search")
def test_a_run_with_the_training_text_alone(options, tmp_path, capsys):
    given = {name: options[name] for name in ("train", "output", "export")}
    given |= {"epochs": 3, "test": 0.1, "verbose": 2, "num_beams": 1}
    trained = train(Recipe(**given))
    options_file = tmp_path / "results/options.toml"
    written = read_options(options_file)
    assert (written["valid"], written["epochs"], written["cooldown"]) == (0.1, 3, 0)
    assert written["target_tokenizer"] == "words"  # six words, all frequent
    assert (
        written["metric"] == "exact_match" and written["preset"] == "transformer_tiny"
    )
    parts = [
        (tmp_path / f"results/data/{part}.source").read_text().splitlines()
        for part in ("train", "valid", "test")
    ]
    assert sum(map(len, parts)) == 199 and trained.figures.sentences == len(parts[2])
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for option in (
        "--valid 0.1",
        "--target-tokenizer words",
        "--tokens-per-batch 1024",
    ):
        assert any(line.split("  ")[1] == option for line in lines if line[:2] == "  ")
    assert [line.split()[1] for line in lines if line.startswith("Epoch")] == [
        *("1/3", "2/3", "3/3")
    ]
    assert "Reading the text  " in output and "nan" not in output

    content = options_file.read_bytes()
    capsys.readouterr()
    again = train(Recipe(**given))  # the run is complete
    assert again.figures == trained.figures
    assert f"The run in {given['output']} is complete." in capsys.readouterr().out
    train(Recipe(**{**given, "epochs": 4, "verbose": 0}))  # resumes with the same
    resumed = read_options(options_file)
    assert resumed == {**tomllib.loads(content.decode()), "epochs": 4, "verbose": 0}
    assert [row["epoch"] for row in read_history(tmp_path / "results")] == [*"1234"]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.once("torch")
def test_sizes_positions_and_tokenizers(options, monkeypatch):
    del options["tokenizer"], options["vocabulary_size"]
    options |= {"source_tokenizer": "bytes", "target_tokenizer": "characters"}
    options |= {"hidden_dim": 12, "num_layers": 2, "positions": "rotary"}
    options["blocks"] = "modern"
    options |= {"num_heads": 3, "epochs": 1, "num_beams": 1, "tensorboard": True}
    model = train(Recipe(**options)).model
    config = model.get_config()
    assert [config[name] for name in ("hidden_dim", "num_layers", "num_heads")] == [
        *(12, 2, 3)
    ]
    assert type(model.positions).__name__ == "RotaryEmbedding"
    assert config["residual_options"] == {"normalization": "rms"}
    assert model.source_tokenizer.vocabulary_size == 260
    assert type(model.target_tokenizer).__name__ == "CharacterTokenizer"
    assert [*pathlib.Path(options["output"], "logs").iterdir()]
    pathlib.Path(options["output"], "figures.json").unlink()
    again = train(Recipe(**options)).model  # resumed, with the tokenizers of the folder
    assert again.source_tokenizer.get_config() == model.source_tokenizer.get_config()
    assert again.generate(["ka"]) == model.generate(["ka"])


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="`devices` needs JAX")
def test_a_run_on_several_devices(options, monkeypatch, capsys):
    """The process of the tests has one device, which takes the place of four."""
    given = []

    def distribute_one(*arguments):
        given.append(arguments)
        return distribute(1)

    monkeypatch.setattr(run, "add_virtual_devices", given.append)
    monkeypatch.setattr(run, "distribute", distribute_one)
    in_effect = keras.distribution.distribution
    for stage in ("prepare", "fit", "finish"):
        monkeypatch.setattr(run, stage, lambda *_: in_effect() is not None)
    options["verbose"] = 2
    assert train(Recipe(**options, devices=4, model_parallel=2))
    assert given == [4, (4, 2)]
    assert "4 virtual devices share one CPU" in capsys.readouterr().out
    assert not train(Recipe(**options))
