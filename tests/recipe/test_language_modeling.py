"""Runs of language models: running text, its parts, tokenizers, window and figures."""

import contextlib
import csv
import io
import json
import pathlib
import random

import keras
import numpy as np
import pytest

from keras_transformer import CausalLM, Sampling, Seq2Seq
from keras_transformer.dataset.running_text import text_documents
from keras_transformer.inference.perplexity import score_running_text
from keras_transformer.models import PRESETS
from keras_transformer.recipe import (
    LanguageModelFigures,
    Recipe,
    read_options,
    train,
)
from keras_transformer.recipe.held_out import default_text_fraction, hold_out_text
from keras_transformer.recipe.language_modeling import short_prompts
from keras_transformer.recipe.plan import Plan, choose_language_model
from keras_transformer.recipe.preparation import prepare
from keras_transformer.recipe.stages import finish, fit
from keras_transformer.recipe.text_statistics import RunningTextStatistics
from keras_transformer.recipe.tokenizers import make_text_tokenizer
from keras_transformer.text import ByteTokenizer, CharacterTokenizer
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.runs.corpora import CorpusFiles
from keras_transformer_runtime.runs.folder import selected_options
from keras_transformer_runtime.text_scores import TextScores

pytestmark = pytest.mark.once("torch")

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}


def random_lines(count, seed=0):
    choose = random.Random(seed)
    words = ["ka", "lo", "mi", "nu", "pé", "so"]
    return [" ".join(choose.choices(words, k=5)) for _ in range(count)]


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


TEXT = random_lines(210)


def recipe(folder, output="run", **options):
    defaults = {
        "train": [str(folder / "text.txt")],
        "model": "causal",
        "output": str(folder / output),
        **SIZES,
        "tokens_per_batch": 256,
        "warmup_steps": 5,
        "learning_rate": 0.01,
        "dropout": 0.1,
        "export": False,
        "verbose": 0,
    }
    return Recipe(**{**defaults, **options})


def history(folder):
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_lines(folder / "text.txt", TEXT)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """A run of two epochs, and what it has printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        result = train(recipe(folder, documents="none", epochs=2, verbose=2))
    return result, output.getvalue()


def test_the_choices_are_printed_and_written(run, folder):
    _, output = run
    lines = output.splitlines()
    options = {line[:35].strip(): line[35:] for line in lines if line[:4] == "  --"}
    expected = {
        "--valid 0.1": "end of the training text",
        "--tokenizer characters": "2,835 characters",
        "--vocabulary-size 17": "the characters of the text",
        "--length 16": "2,835 tokens",
        "--preset transformer_tiny": "2,835 tokens",
        "--blocks modern": "lower loss at the same size",
    }
    assert {name: options[name] for name in expected} == expected
    assert "Training text    2,835 tokens of 1 document in " in output
    assert "Prompts          can begin anywhere in a text" in output
    assert "perplexity" in next(line for line in lines if line.startswith("Epoch 2/2"))
    assert "314 characters of the validation text:" in output
    assert "in windows of 16 tokens, stride 8" in output
    assert all(len(line) <= 80 for line in lines) and "nan" not in output
    written = read_options(folder / "run/options.toml")
    assert written["model"] == "causal" and written["metric"] == "loss"
    assert written["positions"] == "rotary" and written["label_smoothing"] == 0
    assert "max_source_length" not in written and written["length"] == 16
    assert written["blocks"] == "modern"


def test_the_model_of_a_run(run, folder):
    model = keras.saving.load_model(folder / "run/model.keras")
    assert isinstance(model, CausalLM)
    assert (model.max_length, model.add_start_token) == (16, False)
    assert type(model.positions).__name__ == "RotaryEmbedding"
    assert "\n" in model.tokenizer.get_vocabulary()
    assert run[0].search == Sampling(top_p=0.9)
    text = model.generate("ka lo", run[0].search, max_length=5, seed=1)
    assert text == run[0].model.generate("ka lo", run[0].search, max_length=5, seed=1)
    assert selected_options(folder / "run") is None


def test_the_end_of_the_text_is_held_out(run, folder):
    parts = [
        (folder / f"run/data/{name}-001.txt").read_text("utf-8")
        for name in ("train", "valid")
    ]
    assert "".join(parts) == (folder / "text.txt").read_text("utf-8")
    assert [len(part) for part in parts] == [2835, 315]


def test_the_figures_are_those_of_the_validation_text(run, folder):
    result, _ = run
    figures, text = result.figures, (folder / "run/data/valid-001.txt").read_text()
    assert figures == LanguageModelFigures.read(folder / "run/figures.json")
    assert figures.scores == score_running_text(result.model, [text])
    assert figures.scores.texts == 1
    assert figures.scores.tokens == figures.scores.characters == 314
    assert figures.scores.bytes == len(text[1:].encode()) > 314
    losses = [float(row["val_loss"]) for row in history(folder / "run")]
    assert losses[1] < losses[0]
    # The windows of `fit` are those of the selection.
    perplexity = float(history(folder / "run")[-1]["val_perplexity"])
    context = result.model.max_length
    loss = score_running_text(result.model, [text], stride=context).loss
    assert loss == pytest.approx(np.log(perplexity), abs=1e-4)
    assert figures.candidates == {}  # There is one.
    assert figures.weights == "epoch 2, the last"


def test_a_complete_run_is_read(run, folder, capsys):
    again = train(recipe(folder, documents="none", epochs=2, verbose=2))
    assert "is complete" in capsys.readouterr().out
    assert again.figures == run[0].figures and again.search == run[0].search


def test_a_resumed_run_has_the_same_losses(run, folder):
    for epochs in (1, 2):
        train(recipe(folder, "resumed", documents="none", epochs=epochs))
    once, twice = (history(folder / name) for name in ("run", "resumed"))
    for name in ("loss", "val_loss"):
        assert [row[name] for row in twice] == [row[name] for row in once]
    message = "`length` must be .*, with `length=16` in .*received `length=32`"
    with pytest.raises(ValueError, match=message):
        train(recipe(folder, "resumed", documents="none", epochs=2, length=32))


def test_blocks(folder):
    options = {"documents": "none", "epochs": 1, "intermediate_dim": None}
    run = prepare(recipe(folder, "modern", **options), Display(0))
    config = run.model.get_config()
    assert config["activation"] == "silu" and config["intermediate_dim"] == 176
    assert config["attention_options"] == {"dropout": 0.0, "use_bias": False}
    assert config["feed_forward_options"] == {"gated": True, "use_bias": False}
    assert config["residual_options"] == {"normalization": "rms"}
    # The presets have as many parameters as with plain blocks, up to the biases.
    for preset in PRESETS.values():
        plain = 2 * preset["intermediate_dim"]
        assert 0 <= 3 * 8 * -(-plain // 24) - plain < 24


def test_documents_of_a_line_begin_with_the_start_token(tmp_path):
    write_lines(tmp_path / "text.txt", TEXT)
    options = {"documents": "line", "separate_documents": True, "length": 32}
    options |= {"valid": 0.2, "test": 0.1, "epochs": 1}
    run = prepare(recipe(tmp_path, **options), Display(0))
    fit(run, Display(0))
    result = finish(run, Display(0))
    assert result.model.add_start_token
    parts = [
        (tmp_path / f"run/data/{name}-001.txt").read_text("utf-8").splitlines()
        for name in ("train", "valid", "test")
    ]
    assert sorted(sum(parts, [])) == sorted(TEXT)
    assert not {*parts[0]} & {*parts[1]} and not {*parts[1]} & {*parts[2]}
    assert result.figures.scores.texts == len(parts[2])
    assert result.figures.scores.tokens == sum(len(line) + 1 for line in parts[2])
    assert result.search == Sampling(top_p=0.9)
    assert run.evaluator.check_texts == [line[:20] for line in parts[1][:5]]


def test_prompts_that_check_an_export_fit_in_the_context():
    model = CausalLM(**SIZES, tokenizer=ByteTokenizer(), max_length=8)
    texts = ["ka lo", "ka lo mi pe", "lo mi pe", "ééééé"]
    prompts = short_prompts(model, texts)
    assert prompts == ["ka lo", "lo mi pe"]
    assert len(model.generate(prompts, max_length=1)) == 2


def test_start_from_continues_a_language_model(run, folder, tmp_path):
    write_lines(tmp_path / "text.txt", TEXT[:60])
    sizes = dict.fromkeys(SIZES)
    options = {**sizes, "start_from": str(folder / "run"), "epochs": 2, "length": 24}
    model = train(recipe(tmp_path, **options)).model
    assert model.max_length == 24
    assert model.tokenizer.get_config() == run[0].model.tokenizer.get_config()
    before, after = (history(each / "run") for each in (folder, tmp_path))
    assert float(after[0]["loss"]) < float(before[0]["loss"])
    tokenizer = ByteTokenizer()
    Seq2Seq(**SIZES, source_tokenizer=tokenizer, target_tokenizer=tokenizer).save(
        tmp_path / "other.keras"
    )
    options["start_from"] = str(tmp_path / "other.keras")
    message = "`start_from` must be a CausalLM for `model='causal'`; .* is a Seq2Seq"
    with pytest.raises(ValueError, match=message):
        train(recipe(tmp_path, "other", **options))
    message = "`start_from` must be a Seq2Seq for `model='seq2seq'`; .* is a CausalLM"
    write_lines(tmp_path / "pairs.tsv", ["a\tb"] * 20)
    options = {name: [str(tmp_path / "pairs.tsv")] for name in ("train", "valid")}
    options |= {"model": "seq2seq", "start_from": str(folder / "run"), **sizes}
    with pytest.raises(ValueError, match=message):
        train(recipe(tmp_path, "other", **options))


FILES = {"train": ["a.txt", "b.txt", "c.txt"], "output": "runs/a", "model": "causal"}


@pytest.mark.parametrize(
    "name, value",
    [
        ("source_tokenizer", "characters"),
        ("target_vocabulary_size", 7),
        ("vocabularies", "joint"),
        ("max_length", 99),
        ("metric", "bleu"),
        ("metric_every", 2),
        ("bleu_tokenize", "zh"),
        ("num_beams", 3),
        ("subword_sampling", 0.1),
    ],
)
def test_options_that_a_language_model_lacks(name, value):
    assert len(Recipe(**FILES).train) == 3
    message = f"`{name}` must not be given with .*; received `{name}={value!r}`"
    with pytest.raises(ValueError, match=message):
        Recipe(**FILES, **{name: value})


@pytest.mark.parametrize(
    "name, value",
    [("documents", "line"), ("length", 64), ("separate_documents", True)],
)
def test_options_of_language_models_alone(name, value):
    message = f"`{name}` must not be given with `model='seq2seq'`; received `{name}="
    with pytest.raises(ValueError, match=message):
        Recipe(train=["a.tsv"], output="runs/a", **{name: value})


def test_other_errors_of_options():
    with pytest.raises(ValueError, match="`documents` must be 'file', 'line'"):
        Recipe(**FILES, documents="word")
    with pytest.raises(ValueError, match="`model` must be 'seq2seq' or 'causal'"):
        Recipe(train=["a.tsv"], output="runs/a", model="gpt")
    with pytest.raises(ValueError, match="`separate_documents` requires documents"):
        Recipe(**FILES, documents="none", separate_documents=True)
    with pytest.raises(ValueError, match="`train` must be a list of files"):
        Recipe(**{**FILES, "train": []})
    with pytest.raises(ValueError, match="`length` must be .*; received `length=0`"):
        Recipe(**FILES, length=0)


# Parts of running text.


def read(corpora):
    files = [file for corpus in corpora for file in corpus.files]
    return [pathlib.Path(file).read_text("utf-8") for file in files]


def hold_out(
    folder, files, documents, shares, is_kept=False, column=None, weights=None
):
    corpora = [CorpusFiles(files)]
    if weights:
        corpora = [
            CorpusFiles([file], x) for file, x in zip(files, weights, strict=True)
        ]
    return hold_out_text(corpora, column, documents, shares, folder / "data", is_kept)


def test_the_end_of_several_files(tmp_path):
    files = [
        write_lines(tmp_path / "a.txt", ["abc", "defg"]),  # 9 characters
        write_lines(tmp_path / "b.txt", ["hijklmnop"]),  # and 10
    ]
    shares = {"valid": 0.2, "test": 0.3}
    parts = hold_out(tmp_path, files, "file", shares)
    assert read(parts["train"]) == ["abc\ndefg\n"]
    assert read(parts["valid"]) == ["hijk"]
    assert read(parts["test"]) == ["lmnop\n"]
    (valid,) = parts["valid"][0].files
    assert pathlib.Path(valid).name == "valid-002.txt"
    assert hold_out(tmp_path, files, "file", shares, True) == parts
    parts = hold_out(tmp_path, files, "none", {"valid": 0.65})
    assert read(parts["valid"]) == ["g\n", "hijklmnop\n"]
    assert read(parts["train"]) == ["abc\ndef"]


def test_paragraphs_are_held_out_as_a_whole(tmp_path):
    paragraphs = [f"a {number}\nb {number}" for number in range(50)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n\n".join(paragraphs))
    parts = hold_out(tmp_path, [str(path)], "paragraph", {"valid": 0.3})
    found = [
        text.strip().split("\n\n") for text in read([*parts["train"], *parts["valid"]])
    ]
    assert sorted(sum(found, [])) == sorted(paragraphs)
    assert 5 < len(found[1]) < 25


def test_rows_are_held_out_as_a_whole_and_weights_keep_corpora_apart(tmp_path):
    texts = [f"a {number}\n\nb {number}" for number in range(50)]
    rows = [json.dumps({"id": 0, "a": {"b": text}}) for text in texts]
    files = [
        write_lines(tmp_path / "a.jsonl", rows),
        write_lines(tmp_path / "b.txt", ["0123456789" * 3]),
    ]
    options = {"column": "a.b", "weights": [2.0, 1.0]}
    parts = hold_out(tmp_path, files, "file", {"valid": 0.3}, **options)
    assert [corpus.weight for corpus in parts["train"]] == [2.0, 1.0]
    (train_rows,), (train_text,) = (corpus.files for corpus in parts["train"])
    valid_rows, valid_text = parts["valid"][0].files
    found = [[*text_documents(x, "file", "a.b")] for x in (train_rows, valid_rows)]
    assert sorted(sum(found, [])) == sorted(texts)
    assert 5 < len(found[1]) < 25
    ends = [[*text_documents(x, "file", "a.b")] for x in (train_text, valid_text)]
    assert ends == [["0123456789" * 2 + "01"], ["23456789\n"]]
    assert hold_out(tmp_path, files, "file", {"valid": 0.3}, True, **options) == parts


@pytest.mark.parametrize("documents", ["file", "line"])
def test_a_part_must_not_be_empty(tmp_path, documents):
    files = [write_lines(tmp_path / "a.txt", ["abc"])]
    with pytest.raises(ValueError, match="`train` must have enough text for each"):
        hold_out(tmp_path, files, documents, {"valid": 0.01})
    assert not [*(tmp_path / "data").iterdir()]


def test_the_default_fraction():
    assert default_text_fraction(1000) == 0.1
    assert default_text_fraction(10_000_000) == 0.05
    assert 0 < default_text_fraction(10**12) < 1e-6


# Tokenizers and the window.


def make_tokenizer(path, characters=None, **options):
    plan = Plan(Recipe(**{**FILES, "train": [path]}, **options).values())
    text = RunningTextStatistics.of([path], "file")
    text = text._replace(characters=characters or text.characters)
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return plan, make_text_tokenizer(plan, text, iter(lines))


def test_statistics_of_running_text(tmp_path):
    count = 120_000
    path = write_lines(tmp_path / "text.txt", map(str, range(count)))
    text = RunningTextStatistics.of([path], "line")
    assert (text.documents, text.lines, text.scale) == (count, count, 1.2)
    assert text.characters == sum(len(str(number)) for number in range(count))
    assert len({*text.sample}) == 100_000


def test_a_large_text_has_subwords_that_keep_lines_and_spaces(folder):
    plan, tokenizer = make_tokenizer(folder / "text.txt")
    assert isinstance(tokenizer, CharacterTokenizer)
    plan, tokenizer = make_tokenizer(folder / "text.txt", characters=5_000_000)
    assert plan["tokenizer"] == "bpe"
    assert plan["vocabulary_size"] == tokenizer.vocabulary_size
    text = "  ka lo\n\nmi  nu \n"
    rows = tokenizer.tokenize([text, "ka\n"])
    assert [text.decode() for text in tokenizer.detokenize(rows).numpy()] == [
        *(text, "ka\n")
    ]
    assert tokenizer.get_vocabulary().index("\n") in rows.to_list()[1]


def test_words_lose_line_breaks(folder):
    with pytest.warns(UserWarning, match="the model writes a space for each"):
        make_tokenizer(folder / "text.txt", tokenizer="words")


@pytest.mark.parametrize(
    "tokens, length, preset, dropout",
    [
        (100, 16, "tiny", 0.2),
        (6_500, 64, "tiny", 0.2),
        (1_000_000, 256, "tiny", 0.2),
        (5_000_000, 256, "small", 0.1),
        (10**9, 256, "base", 0.1),
    ],
)
def test_choices_by_the_number_of_tokens(tokens, length, preset, dropout):
    plan = Plan(Recipe(**FILES).values())
    choose_language_model(plan, tokens)
    assert (plan["length"], plan["preset"]) == (length, f"transformer_{preset}")
    assert plan["dropout"] == dropout
    assert plan["learning_rate"] * PRESETS[plan["preset"]]["hidden_dim"] == (
        pytest.approx(0.512, rel=1e-3)
    )


# Perplexities.


def test_perplexities_by_hand():
    scores = TextScores(nats=6 * np.log(2), texts=1, tokens=2, characters=3, bytes=6)
    assert scores.loss == pytest.approx(3 * np.log(2))
    assert [line.split()[-1] for line in scores.lines()] == ["8", "4", "2", "1.3863"]
    assert "inf" in TextScores(1e9, 1, 1, 1, 1).lines()[0]


@pytest.mark.parametrize("add_start_token", [False, True])
def test_scores_of_texts(add_start_token):
    options = {"add_start_token": add_start_token, "max_length": 8}
    model = CausalLM(**SIZES, tokenizer=ByteTokenizer(), **options)
    texts = ["abcdefghijklmn", "opé"]
    scores = score_running_text(model, texts, stride=3)
    exact = model.score_texts(texts, stride=3)
    assert scores.nats == pytest.approx(-exact.scores.sum())
    assert scores.tokens == exact.lengths.sum() == 18 + (2 if add_start_token else -2)
    assert scores.texts == 2
    sizes = (17, 18) if add_start_token else (15, 16)
    assert (scores.characters, scores.bytes) == sizes


def test_a_first_token_can_be_a_byte_of_a_character():
    """A text of three bytes has two scored tokens of one byte each."""
    model = CausalLM(**SIZES, tokenizer=ByteTokenizer(), max_length=8)
    scores = score_running_text(model, ["éa", "€", "", "ab"])
    assert (scores.tokens, scores.bytes) == (5, 5)
    assert scores.characters == 2 + 1 + 0 + 1


@pytest.mark.parametrize("content", [{}, {"scores": {"nats": 1}}, {"scores": 5}])
def test_wrong_figures(tmp_path, content):
    (tmp_path / "figures.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="figures.json must have the figures of a run"):
        LanguageModelFigures.read(tmp_path / "figures.json")


# Prompts and answers.


def test_prompts_and_answers(tmp_path):
    answers = [line.upper() for line in TEXT[:80]]
    prompts = write_lines(tmp_path / "prompts.txt", TEXT[:80])
    pairs = {"train": [prompts, write_lines(tmp_path / "answers.txt", answers)]}
    pairs |= {"documents": "pairs", "valid": 0.2, "max_length": 24, "epochs": 1}
    pairs["warmup_steps"] = 2
    result = train(recipe(tmp_path, **pairs))
    model, figures = result.model, result.figures
    assert (model.max_length, model.add_start_token) == (48, True)
    held_out = [
        (tmp_path / f"run/data/valid.{side}").read_text("utf-8").splitlines()
        for side in ("source", "target")
    ]
    assert figures.scores.texts == len(held_out[0]) > 5
    assert figures.scores.nats == pytest.approx(-model.score(*held_out).scores.sum())
    assert figures.scores.tokens == sum(len(line) + 1 for line in held_out[1])
    assert figures.scores.characters == sum(map(len, held_out[1]))
    perplexity = float(history(tmp_path / "run")[-1]["val_perplexity"])
    assert figures.scores.loss == pytest.approx(np.log(perplexity), abs=1e-4)
    again = train(recipe(tmp_path, **{**pairs, "epochs": 2}))  # resumed
    assert [row["epoch"] for row in history(tmp_path / "run")] == ["1", "2"]
    assert train(recipe(tmp_path, **{**pairs, "epochs": 2})).search == again.search


def test_long_answers_are_refused_before_training(tmp_path):
    path = tmp_path / "pairs.tsv"
    write_lines(path, ["ab\tAB"] * 20 + ["ab\t" + "AB" * 9])
    options = {"train": [str(path)], "valid": [str(path)], "documents": "pairs"}
    message = "`valid` must have at most `max_length=18` .* answer of line 21 has 19"
    with pytest.raises(ValueError, match=message):
        train(recipe(tmp_path, **options, max_length=18))
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(
    "name, value", [("length", 64), ("separate_documents", True), ("num_beams", 3)]
)
def test_options_that_pairs_lack(name, value):
    options = {"train": ["a.tsv"], "output": "runs/a", "model": "causal"}
    options |= {"documents": "pairs", name: value}
    with pytest.raises(ValueError, match=f"`{name}` must not be given with .*; rec"):
        Recipe(**options)
    with pytest.raises(ValueError, match="has no target"):
        Recipe(**{**FILES, "documents": "pairs"})
