import dataclasses
import json
import os
import pathlib
import re
import tomllib

import pytest

from keras_transformer.recipe import Recipe, read_options
from keras_transformer.recipe.result import Figures
from keras_transformer_runtime.runs.corpora import weights_of
from keras_transformer_runtime.runs.folder import selected_options
from keras_transformer_runtime.runs.recipe import PlannedRecipe

FILES = {"train": ["a.en", "a.de"], "valid": ["b.tsv"], "output": "runs/a"}


def test_options_are_written_and_read(tmp_path):
    recipe = Recipe(
        **{**FILES, "output": 'C:\\runs "ü"\n'},
        lowercase=True,
        learning_rate=1e-7,
        attention_dropout=0.2,
        r_drop=5,
    )
    path = tmp_path / "options.toml"
    path.write_text(recipe.to_toml(), "utf-8")
    options = read_options(path)
    assert Recipe(**options) == recipe
    values = recipe.values()
    assert options == {name: x for name, x in values.items() if x is not None}
    assert values.keys() == {field.name for field in dataclasses.fields(Recipe)}


@pytest.mark.parametrize("files", ["a.tsv", pathlib.Path("a"), []])
@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_files_are_a_list(name, files):
    if (name, files) == ("test", []):
        assert Recipe(**{**FILES, name: files}).test is None
        return
    message = f"`{name}` must be a list of files; received `{name}="
    with pytest.raises(ValueError, match=message):
        Recipe(**{**FILES, name: files})


def test_corpora_and_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:7").touch()  # an existing file whose name has a colon

    def corpora(*files, **options):
        found = Recipe(**{**FILES, "train": [*files]}, **options).corpora("train")
        names = [[*map(os.path.basename, corpus.files)] for corpus in found]
        return names, weights_of(found)

    assert corpora("a.txt") == ([["a.txt"]], None)
    assert corpora("a.en", "a.de", "b.csv") == ([["a.en", "a.de"], ["b.csv"]], None)
    found = corpora("b.tsv.gz:2", "a.en", "a.de:.5", "c.jsonl")
    assert found == ([["b.tsv.gz"], ["a.en", "a.de"], ["c.jsonl"]], [2.0, 0.5, 1.0])
    assert corpora("a.en", "odd:7", "b:en", "b.de") == (
        [["a.en", "odd:7"], ["b:en", "b.de"]],
        None,
    )
    assert corpora("pairs.txt:3", "b.tsv") == ([["pairs.txt"], ["b.tsv"]], [3.0, 1.0])
    text = {"model": "causal"}
    assert corpora("a.txt", "odd:7", "b.tsv", **text) == (
        [["a.txt", "odd:7", "b.tsv"]],
        None,
    )
    assert corpora("a.txt", "b:2", **text) == ([["a.txt"], ["b"]], [1.0, 2.0])
    pairs = {"model": "causal", "documents": "pairs"}
    assert corpora("a.en", "a.de", **pairs) == ([["a.en", "a.de"]], None)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"train": ["a", "b", "c"]}, "`train` must be source and .*/c has no target"),
        ({"test": ["a", "b.csv"]}, "`test` must be source and .*/a has no target"),
        ({"train": ["a.tsv:0"]}, "corpus of `train` must be .* above 0; received '0'"),
        ({"train": ["a.tsv:-1"]}, "must be a number above 0; received '-1' after"),
        ({"train": ["a", "b:nan"]}, "must be a number above 0; received 'nan' after"),
        ({"train": ["a", "a.de:x"]}, "must be a number above 0; received 'x' after"),
        ({"valid": ["a.tsv:2"]}, "`valid` must have no weights, .* Remove `:2`"),
        ({"columns": ["en"]}, r"names of source and target; received `columns=\['en'"),
        ({"columns": ["en", "de"], "model": "causal"}, "the name of running text;"),
        ({"columns": ["en", "de"], "valid": 0.1}, "`columns` must be given with a"),
    ],
)
def test_wrong_corpora(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.de").touch()
    with pytest.raises(ValueError, match=message):
        Recipe(**{**FILES, **options})


@pytest.mark.parametrize("name", ["epochs", "average", "num_beams", "patience"])
def test_counts(name):
    with pytest.raises(ValueError, match=f"`{name}` must be .*; received `{name}=0`"):
        Recipe(**FILES, **{name: 0})


@pytest.mark.parametrize(
    "name, value",
    [
        ("dropout", 1.0),
        ("attention_dropout", 1.5),
        ("label_smoothing", -0.1),
        ("learning_rate", 0.0),
        ("r_drop", -0.5),
        ("subword_sampling", 1.5),
        ("cooldown", -1),
        ("warmup_steps", 0),
        ("seed", -1),
        ("seed", 2**32),
    ],
)
def test_ranges(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must .*received `{name}={value}`"):
        Recipe(**FILES, **{name: value})


def test_devices_of_replicas():
    message = "`model_parallel` must divide .*`devices=4`, `model_parallel=3`"
    with pytest.raises(ValueError, match=message):
        Recipe(**FILES, devices=4, model_parallel=3)


def test_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = {"train": [pathlib.Path("a.en"), pathlib.Path("a.de")], "start_from": "m"}
    recipe = Recipe(**{**FILES, **paths, "output": pathlib.Path("runs/a")})
    assert recipe == Recipe(**FILES, start_from=pathlib.Path("m"))
    options = tomllib.loads(recipe.to_toml())
    assert options["train"] == [str(tmp_path / name) for name in FILES["train"]]
    assert options["start_from"] == str(tmp_path / "m")
    assert Recipe(**FILES, start_from="hf://user/name").start_from == "hf://user/name"


@pytest.mark.parametrize(
    "name, value",
    [
        ("preset", "transformer_base"),
        ("vocabulary_size", 7),
        ("normalization", "nfkc"),
        ("tokenizer", "words"),
        ("hidden_dim", 64),
        ("blocks", "modern"),
        ("user_defined_symbols", ["<n>"]),
    ],
)
def test_options_that_init_determines(name, value):
    received = re.escape(f"`{name}={value!r}`")
    message = f"`{name}` must not be given with `start_from`.*; received {received}"
    with pytest.raises(ValueError, match=message):
        Recipe(**FILES, start_from="a.keras", **{name: value})


def test_a_file_with_sections_or_without_lists(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text("epochs = 3\n[model]\npreset = 'a'\n")
    with pytest.raises(ValueError, match=r"outside of sections; .* `\[model\]`"):
        read_options(path)
    path.write_text("train = 'a.tsv'\n")
    message = r"`train` must be a list .*\. Write `train = \[\"a.tsv\"\]`"
    with pytest.raises(ValueError, match=message):
        read_options(path)


def test_verbose():
    with pytest.raises(ValueError, match="0, 1 or 2; received `verbose=3`"):
        Recipe(**FILES, verbose=3)


def test_an_unknown_option_in_a_file(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text("epochs = 3\nwarmup = 5\nzzz = 1\n")
    with pytest.raises(ValueError, match=r"options\.toml .*received `(warmup|zzz)`"):
        read_options(path)
    path.write_text("warmup_step = 5\n")
    with pytest.raises(
        ValueError, match=r"`warmup_step`\. Did you mean `warmup_steps`\?"
    ):
        read_options(path)


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text("\ufeffepochs = 3\n", "utf-8")
    assert read_options(path) == {"epochs": 3}


@pytest.mark.parametrize("content", [b"epochs = ", b"output = '\xff'"])
def test_a_file_that_is_not_toml(tmp_path, content):
    path = tmp_path / "options.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"options\.toml must be a TOML file"):
        read_options(path)


def test_a_resumed_run_has_the_options_on_which_the_weights_depend():
    began, path = Recipe(**FILES, dropout=0.2), pathlib.Path("file")
    further = {"epochs": 50, "verbose": 2, "test": ["c.tsv"], "output": "elsewhere"}
    further |= {"valid": ["c.tsv"], "micro_batches": 2, "metric": "chrf"}
    further |= {"devices": 4, "model_parallel": 2}
    Recipe(**{**FILES, **further}, dropout=0.2).check_resumes(began, path)
    others = {"dropout": 0.1, "seed": 3, "train": ["a.tsv"], "valid": 0.1, "test": 0.1}
    for name, value in others.items():
        other = Recipe(**{**FILES, "dropout": 0.2, name: value})
        message = f"`{name}` must be .* in file; received `{name}="
        with pytest.raises(ValueError, match=message):
            other.check_resumes(began, path)


@pytest.mark.parametrize(
    "name, value",
    [
        ("tokenizer", "bpes"),
        ("source_tokenizer", "char"),
        ("metric", "blue"),
        ("positions", "absolute"),
        ("blocks", "llama"),
        ("vocabularies", "shared"),
    ],
)
def test_unknown_values(name, value):
    with pytest.raises(
        ValueError, match=f"`{name}` must be '.* or '.*; received `{name}='{value}'"
    ):
        Recipe(**FILES, **{name: value})


def test_tokenizers_that_contradict_each_other():
    Recipe(**FILES, tokenizer="bpe", source_tokenizer="bpe")
    message = "`source_tokenizer` must be `tokenizer` if .*; received `tokenizer='bpe'`"
    with pytest.raises(ValueError, match=message):
        Recipe(**FILES, tokenizer="bpe", source_tokenizer="words")


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -0.1, 2])
def test_fractions_of_the_text(value):
    message = f"`valid` must be files, or a fraction .*; received `valid={value}`"
    with pytest.raises(ValueError, match=message):
        Recipe(**{**FILES, "valid": value})
    with pytest.raises(ValueError, match="must leave at least a tenth"):
        Recipe(**{**FILES, "valid": 0.5, "test": 0.45})


def test_values_of_a_run_complete_a_recipe():
    began = Recipe(**FILES, epochs=7, dropout=0.2, test=["c.tsv"], patience=3)
    recipe = Recipe(train=FILES["train"], output="elsewhere", epochs=9)
    completed = recipe.completed_by(began)
    assert (completed.epochs, completed.dropout) == (9, 0.2)
    assert (completed.valid, completed.output) == (began.valid, "elsewhere")
    assert completed.test is completed.patience is None


PLANNED = {
    **{"dropout": 0.3, "epochs": 40, "tokens_per_batch": 4096, "learning_rate": 4e-3},
    **{"warmup_steps": 2000, "cooldown": 10, "average": 10, "save_every": 500},
    "metric": "bleu",
}


def test_a_missing_option_of_a_run():
    with pytest.raises(ValueError, match=r"the options `epochs` are missing"):
        PlannedRecipe.of({**FILES, **PLANNED, "epochs": None})


WRONG_OPTIONS = (
    *("epochs = 'x'", "epochs = 1.5", "epochs = []", "learning_rate = 'x'"),
    *("subword_sampling = 'x'", "output = 5", "train = [1, 2]", "preset = ['a']"),
    *("start_from = 5", "seed = 'x'", "bleu_tokenize = 5", "lowercase = 'x'"),
    *(
        "dtype = 1",
        "lora = 0.5",
        "lora = 0",
        "lora_targets = 'query'",
        "lora_alpha = 0",
    ),
    *("learning_rate = nan", "r_drop = inf", "patience = 1.5", "verbose = 'x'"),
    *(
        "dropout = 1979-05-27",
        "test = 5",
        "valid = 'a.tsv'",
        "valid = true",
        "export = 2",
        "max_length = -1",
        "a =",
    ),
    *(f"epochs = {'[' * 100_000}", f"epochs = -{'9' * 100}", f"epochs = {'9' * 9999}"),
)


@pytest.mark.once("torch")
@pytest.mark.parametrize("line", WRONG_OPTIONS, ids=lambda line: line[:30])
def test_a_wrong_option_in_a_file(tmp_path, line):
    lines = {"train": '["a"]', "valid": '["b"]', "output": '"runs/a"'}
    name, _, value = line.partition(" = ")
    lines[name] = value
    path = tmp_path / "options.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    with pytest.raises(ValueError, match="options.toml"):
        Recipe.from_toml(path)


@pytest.mark.once("torch")
def test_a_pipe_in_place_of_a_file(tmp_path):
    os.mkfifo(tmp_path / "options.toml")
    with pytest.raises(ValueError, match="options.toml must be a file"):
        read_options(tmp_path / "options.toml")


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "content", [{}, [], {"length_penalty": "x"}, {"length_penalty": float("nan")}]
)
def test_wrong_figures(tmp_path, content):
    recipe = PlannedRecipe.of({**FILES, **PLANNED})
    (tmp_path / "options.toml").write_text(recipe.to_toml())
    (tmp_path / "figures.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="figures.json must"):
        selected_options(tmp_path)
    with pytest.raises(ValueError, match="figures.json must"):
        Figures.read(tmp_path / "figures.json")
