import csv
import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

from keras_transformer import SentencePieceTokenizer, Seq2Seq, Tokenizer
from keras_transformer.layers import LearnedPositionalEncoding
from keras_transformer.recipe import Recipe, read_options, result, train
from keras_transformer.recipe.model import in_float32
from keras_transformer.recipe.optimizers import DEFAULTS
from keras_transformer.recipe.preparation import prepare
from keras_transformer.recipe.stages import HistoryFile, finish, fit
from keras_transformer.recipe.translation import LENGTH_PENALTIES
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.runs.option_checks import OPTIMIZERS

TOY = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}


def write_pairs(path, count, seed):
    """Writes parallel text; the target has the words reversed and in upper case."""
    random = np.random.default_rng(seed)
    words = ["ka", "lo", "mi", "nu", "pe", "so"]
    rows = [[str(word) for word in random.choice(words, 3)] for _ in range(count)]
    pairs = [(" ".join(row), " ".join(row[::-1]).upper()) for row in rows]
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    for suffix, side in {".source": 0, ".target": 1}.items():
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        path.with_suffix(suffix).write_text(lines, "utf-8")


def make_options(folder):
    """Writes the texts of a small run into a folder, and returns its options."""
    for seed, (part, count) in enumerate({"train": 199, "valid": 7, "test": 5}.items()):
        write_pairs(folder / f"{part}.tsv", count, seed)
    return {
        "train": [str(folder / "train.source"), str(folder / "train.target")],
        "valid": [str(folder / "valid.tsv")],
        "test": [str(folder / "test.tsv")],
        "output": str(folder / "results"),
        "epochs": 1,
        "vocabulary_size": 37,
        "tokenizer": "bpe",
        "max_length": 14,  # of outputs too: a search has as many steps
        "num_beams": 2,
        "tokens_per_batch": 256,
        "warmup_steps": 5,
        "attention_dropout": 0.05,
        "cooldown": 0,
        "average": 1,
        "export": False,
        "verbose": 0,
        **TOY,
    }


@pytest.fixture
def options(tmp_path):
    return make_options(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The options of a run of one epoch, and its result."""
    options = make_options(tmp_path_factory.mktemp("run"))
    return options, train(Recipe(**options))


def copied(trained, folder):
    """Copies the run into another folder; returns its options."""
    shutil.copytree(trained[0]["output"], folder)
    return {**trained[0], "output": str(folder)}


def read_history(folder):
    with (folder / "history.csv").open() as history:
        return list(csv.DictReader(history))


@pytest.mark.once("torch")
def test_a_run_writes_its_files(trained, capsys):
    options, (model, search, figures) = trained
    results = pathlib.Path(options["output"])
    assert figures.sentences == 5 and 0 <= figures.bleu <= 100
    assert "tok:13a" in figures.bleu_signature
    assert {*figures.valid_scores} == {str(each) for each in LENGTH_PENALTIES}
    best = max(figures.valid_scores, key=figures.valid_scores.get)
    assert search.num_beams == 2 and figures.length_penalty == float(best)
    assert figures.metric == "bleu" and figures.weights == "epoch 1, the last"
    written = json.loads((results / "figures.json").read_text())
    assert written == dataclasses.asdict(figures)
    assert Tokenizer.load(results / "tokenizer.json").vocabulary_size == 37
    saved = keras.saving.load_model(results / "model.keras")
    assert saved.normalize_first and saved.attention_options == {"dropout": 0.05}
    texts = ["ka lo", "mi"]
    assert saved.generate(texts, search) == model.generate(texts, search)
    # A complete run is read.
    again = train(Recipe(**{**options, "verbose": 2}))
    assert (repr(again.search), again.figures) == (repr(search), figures)
    assert again.model.generate(texts, search) == model.generate(texts, search)
    assert f"The run in {results} is complete." in capsys.readouterr().out


@pytest.mark.once("torch")
def test_a_run_of_other_texts_is_not_resumed(options):
    train(Recipe(**options))
    path = pathlib.Path(options["train"][1])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[1:], lines[0]]))
    for epochs in (1, 2):
        message = f"`train` must have the text .* received {path}, whose content has ch"
        with pytest.raises(ValueError, match=message):
            train(Recipe(**{**options, "epochs": epochs}))


@pytest.mark.once("torch")
def test_a_run_is_resumed(trained, tmp_path):
    results = tmp_path / "results"
    options = copied(trained, results)
    message = "must be .* with `label_smoothing=0.1` in .*; received `label_smoothing="
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, label_smoothing=0.2))
    written = read_options(results / "options.toml")
    train(Recipe(**{**written, **options, "epochs": 2, "tensorboard": True}))
    rows = read_history(results)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[1]["loss"]) < float(rows[0]["loss"])
    assert read_options(results / "options.toml")["epochs"] == 2
    assert [*(results / "logs").iterdir()]
    # Fewer epochs end a run at its position.
    (results / "figures.json").unlink()
    path = results / "options.toml"
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 5"))
    last = train(Recipe(**{**options, "epochs": 2}))
    assert result.Figures.read(results / "figures.json") == last.figures
    assert len(read_history(results)) == 2


@pytest.mark.once("torch")
def test_a_run_without_its_export_is_not_complete(trained, tmp_path):
    options = {**copied(trained, tmp_path / "results"), "export": True}
    (tmp_path / "results/saved_model").write_text("a file in the place of a folder")
    for _ in range(2):
        with pytest.raises(OSError, match="saved_model"):
            train(Recipe(**options))


@pytest.mark.once("torch")
@pytest.mark.slow
def test_one_format_of_the_export(trained, tmp_path):
    options = {**copied(trained, tmp_path / "results"), "export": True}
    train(Recipe(**options, export_format="ctranslate2"))
    assert (tmp_path / "results/ctranslate2/model.bin").exists()
    assert not (tmp_path / "results/saved_model").exists()
    options["output"] = str(tmp_path / "other")
    unsupported = {**options, "positions": "alibi", "export_format": "ctranslate2"}
    with pytest.raises(ValueError, match="for CTranslate2"):
        prepare(Recipe(**unsupported), Display(0))


@pytest.mark.once("torch")
def test_the_model_is_saved_before_its_evaluation(trained, tmp_path):
    run = prepare(Recipe(**copied(trained, tmp_path / "results")), Display(0))

    class Evaluator:
        description = "Evaluating"
        metric, is_lower_better = "bleu", False

        def score(self, model):
            return 1.0

        def result(self, model, selection):
            raise MemoryError("all of it")

    (tmp_path / "results/model.keras").unlink()
    fit(run, Display(0))  # It loads the weights.
    with pytest.raises(MemoryError):
        finish(run._replace(evaluator=Evaluator()), Display(0))
    saved = keras.saving.load_model(tmp_path / "results/model.keras")
    for a, b in zip(saved.get_weights(), trained[1].model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not (tmp_path / "results/figures.json").exists()


@pytest.mark.once("torch")
def test_start_from_starts_from_a_trained_model(trained, tmp_path):
    options, first = trained[0], trained[1].model
    first.save_to_preset(tmp_path / "preset")
    further = {k: v for k, v in options.items() if k not in TOY}
    del further["vocabulary_size"], further["tokenizer"]
    further |= {"dropout": 0.0, "max_length": 31}
    losses = []
    for start in (pathlib.Path(options["output"]), tmp_path / "preset"):
        output = tmp_path / "from" / start.name
        run = prepare(
            Recipe(**{**further, "output": output}, start_from=start), Display(0)
        )
        fit(run, Display(0))
        losses += [float(row["val_loss"]) for row in read_history(output)]
        assert not (output / "tokenizer.json").exists()
        assert (run.model.max_source_length, run.model.dropout) == (31, 0)
        tokenizer = run.model.source_tokenizer
        assert tokenizer.get_config() == first.source_tokenizer.get_config()
    (before,) = read_history(pathlib.Path(options["output"]))
    assert losses[0] == losses[1] < float(before["val_loss"])
    shutil.rmtree(start)  # The run keeps a copy.
    further |= {"output": output, "epochs": 2, "start_from": start}
    fit(prepare(Recipe(**further), Display(0)), Display(0))
    assert [row["epoch"] for row in read_history(output)] == ["1", "2"]


@pytest.mark.once("torch")
def test_start_from_must_be_trainable(options, tmp_path):
    for name in ("vocabulary_size", "tokenizer", *TOY):
        del options[name]
    with pytest.raises(FileNotFoundError, match="letters.keras does not exist"):
        train(Recipe(**options, start_from=tmp_path / "letters.keras"))
    Seq2Seq(**TOY, vocabulary_size=11).save(tmp_path / "letters.keras")
    message = (
        "`start_from` must be a model with tokenizers; .*letters.keras'`, a Seq2Seq"
    )
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, start_from=tmp_path / "letters.keras"))
    tokenizer = SentencePieceTokenizer.train(options["train"], vocabulary_size=37)
    positions = LearnedPositionalEncoding(9)
    short = Seq2Seq(**TOY, source_tokenizer=tokenizer, positions=positions)
    short.save(tmp_path / "short.keras")
    message = "`max_length` must be at most 9, .*; received `max_length=14`"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, start_from=tmp_path / "short.keras"))


@pytest.mark.once("torch")
def test_patience_ends_a_run(options, tmp_path):
    options |= {"learning_rate": 1e-12, "epochs": 5, "patience": 2, "metric": "loss"}
    for _ in range(2):  # the second run is complete
        fit(prepare(Recipe(**options), Display(0)), Display(0))
        assert len(read_history(tmp_path / "results")) == 3


@pytest.mark.once("torch")
def test_warns_of_a_long_warmup(options):
    options |= {"warmup_steps": 1000, "metric": "loss"}
    with pytest.warns(UserWarning, match="`warmup_steps=1000` is greater than .* "):
        fit(prepare(Recipe(**options), Display(0)), Display(0))
    prepare(Recipe(**options), Display(0))  # No warning: the rate has been used.


@pytest.mark.once("torch")
def test_identity_normalization_and_bleu_of_characters(options, tmp_path):
    for path, line in zip(options["train"], ("½ ka\n", "KA½\n"), strict=True):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    options |= {"normalization": "identity", "character_coverage": 0.99}
    message = "`tokenize` must be one of sacreBLEU's .*; received `tokenize='klingon'`"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options, bleu_tokenize="klingon"))
    assert not (tmp_path / "results").exists()
    run = prepare(Recipe(**options, bleu_tokenize="char"), Display(0))
    assert run.evaluator.callbacks()[0].tokenize == "char"
    vocabulary = run.model.source_tokenizer.get_vocabulary()
    assert not {"½", "⁄"} & {character for piece in vocabulary for character in piece}


@pytest.mark.once("torch")
def test_options_may_change_before_the_first_checkpoint(options, tmp_path):
    results = tmp_path / "results"
    for size in (37, 31):
        prepare(Recipe(**{**options, "vocabulary_size": size}), Display(0))
        assert read_options(results / "options.toml")["vocabulary_size"] == size
        assert Tokenizer.load(results / "tokenizer.json").vocabulary_size == size


@pytest.mark.once("torch")
def test_history_of_metrics_of_every_second_epoch(options, tmp_path):
    for epochs in (1, 3):
        recipe = Recipe(**{**options, "epochs": epochs}, metric_every=2)
        fit(prepare(recipe, Display(0)), Display(0))
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
    message = f"`{name}` must have at most `max_length=14` .*; received .* in line"
    with pytest.raises(ValueError, match=message):
        train(Recipe(**options))
    assert not (tmp_path / "results/checkpoints").exists()


@pytest.mark.once("torch")
@pytest.mark.parametrize("model", ["seq2seq", "causal"])
def test_long_lines_are_left_out_if_they_are_held_out(options, model):
    for path, word in zip(options["train"], ("ka", "KA"), strict=True):
        lines = "".join(f"{' '.join([word] * n)}\n" for n in range(30, 50))
        pathlib.Path(path).write_text(lines + pathlib.Path(path).read_text())
    options |= {"valid": 0.4, "test": 0.4, "warmup_steps": 1}
    if model == "causal":
        options |= {"model": "causal", "documents": "pairs"}
        del options["num_beams"]
    with pytest.warns(UserWarning, match="[1-9] test pairs are longer than"):
        evaluator = prepare(Recipe(**options), Display(0)).evaluator
    assert {len(text.split()) for text in evaluator.check_texts} == {3}


@pytest.mark.once("torch")
def test_a_missing_test_text_is_refused_before_training(options, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(Recipe(**{**options, "test": ["nowhere.tsv"]}))
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_resumes_exactly(options, tmp_path, optimizer, capsys):
    """A run of 2 epochs and 3 batches is stopped in its second epoch."""
    del options["epochs"], options["cooldown"], options["warmup_steps"]
    options |= {"optimizer": optimizer, "schedule": "cosine", "clip_norm": 1.0}
    options |= {"metric": "loss", "micro_batches": 2, "save_every": 2, "verbose": 2}

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations > batches + 4:
                raise KeyboardInterrupt

    def fitted(folder, *others):
        recipe = Recipe(**{**options, "output": tmp_path / folder, "steps": steps})
        run = prepare(recipe, Display(2))
        callbacks = run.evaluator.callbacks
        run.evaluator.callbacks = lambda: [*callbacks(), *others]
        fit(run, Display(0))
        return run

    steps = 5
    batches = fitted("first").data.train.batches_per_epoch
    steps = 2 * batches + 3
    whole = fitted("whole")
    assert int(whole.model.optimizer.iterations) == steps
    with pytest.raises(KeyboardInterrupt):
        fitted("stopped", Stop())
    resumed = fitted("stopped")
    assert int(resumed.model.optimizer.iterations) == steps
    weights = whole.model.get_weights()
    for a, b in zip(weights, resumed.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    first, *_, last = read_history(tmp_path / "whole")
    assert float(last["loss"]) < float(first["loss"])
    decays = DEFAULTS[optimizer].weight_decay is not None
    assert ("Weight decay     of " in capsys.readouterr().out) == decays
    message = "`steps` must be that of the run to resume, with `steps="
    with pytest.raises(ValueError, match=message):
        steps += 1
        fitted("stopped")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_gives_a_float32_model(options, tmp_path, dtype):
    recipe = Recipe(**{**options, "epochs": 2, "metric": "loss"}, dtype=dtype)
    run = prepare(recipe, Display(0))
    assert run.model.dtype_policy.name == dtype
    fit(run, Display(0))
    first, last = read_history(tmp_path / "results")
    assert float(last["loss"]) < float(first["loss"])
    model = in_float32(run.model)
    assert model.dtype_policy.name == "float32"
    pairs = pathlib.Path(options["valid"][0]).read_text().splitlines()
    sources, targets = zip(*(pair.split("\t") for pair in pairs), strict=True)
    scores = model.score(list(sources), list(targets))
    perplexity = np.exp(-np.sum(scores.scores) / np.sum(scores.lengths))
    assert perplexity == pytest.approx(float(last["val_perplexity"]), rel=0.01)


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
        ValueError, match=f"`{name}` must be '.* or '.*`{name}='{value}'"
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


@pytest.mark.once("torch")
def test_a_run_with_the_training_text_alone(options, tmp_path, capsys):
    given = {name: options[name] for name in ("train", "output", "export", *TOY)}
    given |= {"epochs": 2, "test": 0.1, "verbose": 2, "num_beams": 1, "max_length": 14}
    trained = train(Recipe(**given))
    written = read_options(tmp_path / "results/options.toml")
    assert (written["valid"], written["epochs"], written["cooldown"]) == (0.1, 2, 0)
    assert written["target_tokenizer"] == "words"  # six words, all frequent
    assert written["metric"] == "exact_match"
    assert written["preset"] == "transformer_tiny"
    parts = [
        (tmp_path / f"results/data/{part}.source").read_text().splitlines()
        for part in ("train", "valid", "test")
    ]
    assert sum(map(len, parts)) == 199 and trained.figures.sentences == len(parts[2])
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    chosen = {line.split("  ")[1] for line in lines if line.startswith("  ")}
    expected = {"--valid 0.1", "--target-tokenizer words", "--tokens-per-batch 1024"}
    assert expected <= chosen
    epochs = [line.split()[1] for line in lines if line.startswith("Epoch")]
    assert epochs == ["1/2", "2/2"]
    assert "Reading the text  " in output and "nan" not in output
    # A resumed run makes the same choices.
    capsys.readouterr()
    prepare(Recipe(**{**given, "epochs": 4, "verbose": 0}), Display(2))
    output = capsys.readouterr().out
    assert "Resuming         at epoch 3 of 4, batch 1\n" in output
    resumed = read_options(tmp_path / "results/options.toml")
    assert resumed == {**written, "epochs": 4, "verbose": 0}


@pytest.mark.once("torch")
def test_sizes_positions_and_tokenizers(options):
    del options["tokenizer"], options["vocabulary_size"]
    options |= {"source_tokenizer": "bytes", "target_tokenizer": "characters"}
    options |= {"hidden_dim": 12, "num_layers": 2, "num_heads": 3}
    options |= {"positions": "rotary", "blocks": "modern"}
    model = prepare(Recipe(**options), Display(0)).model
    config = model.get_config()
    sizes = [config[name] for name in ("hidden_dim", "num_layers", "num_heads")]
    assert sizes == [12, 2, 3]
    assert type(model.positions).__name__ == "RotaryEmbedding"
    assert config["residual_options"] == {"normalization": "rms"}
    assert model.source_tokenizer.vocabulary_size == 260
    assert type(model.target_tokenizer).__name__ == "CharacterTokenizer"
