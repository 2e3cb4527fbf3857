import os
import pathlib
import re
import subprocess
import sys

import pytest
from error_box import unwrapped
from typer.testing import CliRunner

from keras_transformer import __version__
from keras_transformer.recipe import Figures, Recipe, TrainingResult
from keras_transformer_runtime.command import make_app

pytestmark = pytest.mark.once("torch")

FIGURES = Figures(
    sentences=1234,
    length_penalty=0.6,
    bleu=41.5,
    bleu_signature="case:lc",
    chrf=65.25,
    chrf_signature="nc:6",
    valid_scores={"0.0": 42.5, "0.6": 43.0},
    exact_match=12.5,
    token_error_rate=35.5,
    character_error_rate=21.25,
    metric="bleu",
    weights="epoch 7, the last",
    candidates={},
)
FILES = ["--train", "a.en", "a.de", "--valid", "b.tsv", "--output", "runs/a"]


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch):
    """The command checks that the texts exist."""
    folder = tmp_path / "texts"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("a.en", "a.de", "b.tsv", "c.tsv", "d.en", "d.de", "a.tsv"):
        (folder / name).write_text("a\tb\n", "utf-8")


@pytest.fixture
def recipes(monkeypatch):
    """Returns the list of the recipes that the command trains."""
    recipes = []

    def train(recipe):
        recipes.append(recipe)
        return TrainingResult(None, None, FIGURES)

    monkeypatch.setattr("keras_transformer.recipe.train", train)
    return recipes


def absolute(*paths):
    return [os.path.abspath(path) for path in paths]


def invoke(*arguments):
    return CliRunner().invoke(make_app(), ["train", *map(str, arguments)])


def test_options_become_a_recipe(recipes):
    result = invoke(*FILES, "--dropout", 0.1, "--no-export", "--lowercase")
    assert result.exit_code == 0, result.output
    recipe = Recipe(
        train=["a.en", "a.de"],
        valid=["b.tsv"],
        output="runs/a",
        dropout=0.1,
        export=False,
        lowercase=True,
    )
    assert recipes == [recipe]
    loading, *lines = result.output.splitlines()
    assert loading.startswith("Loading Keras and TensorFlow  ")
    assert lines == [
        "weights     epoch 7, the last",
        "model       runs/a/model.keras",
        "use         keras-transformer translate runs/a",
    ]


def test_figures_of_a_silent_run(recipes):
    lines = invoke(*FILES, "--verbose", 0).output.splitlines()
    assert [line.split() for line in lines[:6]] == [
        ["bleu", "41.50"],
        ["chrf", "65.25"],
        ["exact", "match", "12.50"],
        ["token", "error", "rate", "35.50"],
        ["character", "error", "rate", "21.25"],
        ["sacreBLEU", "case:lc"],
    ]


def test_fractions_and_files(recipes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("a\tb\n", "utf-8")
    arguments = ["--train", "a.tsv", "--output", "runs/a"]
    assert invoke(*arguments, "--valid", "0.02", "--test=0.1").exit_code == 0
    assert (recipes[-1].valid, recipes[-1].test) == (0.02, 0.1)
    assert invoke(*arguments, "--valid", "2.5%", "--test", "10%").exit_code == 0
    assert (recipes[-1].valid, recipes[-1].test) == (0.025, 0.1)
    (tmp_path / "0.02").write_text("a\tb\n", "utf-8")
    assert invoke(*arguments, "--valid", "0.02").exit_code == 0
    assert recipes[-1].valid == absolute("0.02")
    assert invoke(*arguments).exit_code == 0
    assert (recipes[-1].valid, recipes[-1].test) == (None, None)
    result = invoke(*arguments, "--valid", "2")
    message = "`valid` must be files, or a fraction of the training text"
    assert message in str(result.exception)


def test_columns_and_weights(recipes):
    pathlib.Path("b.csv").write_text("id,en,de\n1,a,b\n", "utf-8")
    given = ["--train", "a.en", "a.de:2", "b.csv:0.5", "--output", "runs/a"]
    assert invoke(*given, "--columns", "en", "de").exit_code == 0
    assert recipes[0].train == absolute("a.en", "a.de:2", "b.csv:0.5")
    assert recipes[0].columns == ["en", "de"]
    # The columns are checked before the first slow import.
    result = invoke(*given, "--columns", "en", "fr")
    assert "has the columns 'id', 'en', 'de'" in str(result.exception)
    result = invoke(*given[:-3], "c.tsv:2", "missing.csv", *given[-2:])
    assert "missing.csv does not exist" in str(result.exception)
    assert len(recipes) == 1


def test_the_length_and_the_schedule_of_a_run(recipes, tmp_path):
    options = ["--steps", 9, "--schedule", "inverse-sqrt", "--optimizer", "lion"]
    assert invoke(*FILES, *options).exit_code == 0
    (recipe,) = recipes
    assert (recipe.steps, recipe.epochs) == (9, None)
    assert (recipe.schedule, recipe.optimizer) == ("inverse_sqrt", "lion")
    config = tmp_path / "options.toml"  # of a run, which has rounded up its epochs
    config.write_text(f"{recipe.to_toml()}epochs = 2\n")
    assert invoke("--config", config).exit_code == 0
    assert recipes[-1] == recipe
    result = invoke("--config", config, "--epochs", 3)
    message = "`epochs` must not be given with `steps`; received `epochs=3`, `steps=9`"
    assert message in str(result.exception)


def test_auto_overrides_a_file(recipes, tmp_path):
    config = tmp_path / "options.toml"
    config.write_text("epochs = 7\nhidden_dim = 64\n")
    arguments = ["--config", config, *FILES, "--epochs", "auto", "--dropout", "0"]
    assert invoke(*arguments).exit_code == 0
    (recipe,) = recipes
    assert (recipe.epochs, recipe.hidden_dim, recipe.dropout) == (None, 64, 0.0)
    result = invoke(*FILES, "--epochs", "many")
    assert result.exit_code == 2
    message = "'many' is neither 'auto' nor of type int"
    assert message in unwrapped(result.output)


def test_help_shows_whole_names_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = invoke("--help").output
    for name in Recipe(train=["a"], output="b").values():
        name = {"start_from": "from"}.get(name, name)
        assert f"--{name.replace('_', '-')} " in output


def test_the_command_line_overrides_the_file(recipes, tmp_path):
    began = Recipe(
        train=["a.en", "a.de"],
        valid=["b.tsv"],
        test=["c.tsv"],
        output="runs/a",
        epochs=7,
        lowercase=True,
        attention_dropout=0.2,
        seed=3,
    )
    config = tmp_path / "options.toml"
    config.write_text(began.to_toml())
    assert invoke("--config", config).exit_code == 0
    options = ["--seed", 5, "--no-lowercase", "--valid=d.en", "d.de"]
    assert invoke("--config", config, *options).exit_code == 0
    same, other = recipes
    assert same == began
    assert (other.epochs, other.seed, other.lowercase) == (7, 5, False)
    assert (other.train, other.valid) == (began.train, absolute("d.en", "d.de"))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (None, "Stopped before the first checkpoint. Run the same command to restart."),
        (
            "epoch-0004-after-batch-000500.npz",
            "Stopped. Run the same command to resume at epoch 4, batch 501.",
        ),
        (
            "epoch-0003.npz",
            "Stopped. Run the same command to resume at epoch 4, batch 1.",
        ),
        (
            "epoch-0007.npz",
            "Stopped after the last epoch. Run the same command to evaluate the model.",
        ),
    ],
)
def test_an_interrupt(saved, message, monkeypatch, tmp_path):
    def stop(recipe):
        if saved:
            (tmp_path / "checkpoints" / saved).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_transformer.recipe.train", stop)
    (tmp_path / "checkpoints").mkdir()
    result = invoke(*FILES[:-1], tmp_path, "--epochs", 7)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == message


def test_wrong_usage(recipes, tmp_path):
    result = invoke("--train", "a.tsv")
    assert result.exit_code == 2 and "'--output'" in result.output
    config = tmp_path / "options.toml"
    config.write_text('epochs = "many"\n')
    result = invoke("--config", config, *FILES)
    assert result.exit_code == 2 and "'--epochs'" in result.output
    config.write_text("epoch = 7\n")
    result = invoke("--config", config, *FILES)
    assert result.exit_code == 1
    assert "received `epoch`. Did you mean `epochs`?" in str(result.exception)
    result = invoke(*FILES, "--test", "a", "b", "c")
    assert "c has no target" in str(result.exception)
    assert not recipes


def outcome(*arguments):
    """Runs the command without `TF_CPP_MIN_LOG_LEVEL`."""
    quiet = {key: value for key, value in os.environ.items() if "CPP_MIN" not in key}
    return subprocess.run(
        [sys.executable, "-m", "keras_transformer_runtime", *arguments],
        capture_output=True,
        text=True,
        env=quiet,
    )


def test_an_error_is_printed_without_the_log_of_tensorflow(tmp_path):
    options = ["--preset", "tiny", "--output", str(tmp_path / "a")]
    process = outcome("train", "--train", "a.tsv", "--valid", "b.tsv", *options)
    assert process.returncode == 1 and not process.stdout
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: `--preset` must be 'transformer_tiny', ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--version"], 0, f"keras-transformer {__version__}\n"),
        (["train", "--help"], 0, "--attention-dropout"),
        (["translate", "none.keras"], 2, "does not exist"),
        (["train", *FILES, "--dropout", "2"], 1, "`--dropout` must be a finite num"),
    ],
    ids=["version", "help", "argument", "option of a recipe"],
)
def test_the_command_does_not_wait_for_keras(arguments, code, message):
    process = subprocess.run(
        [sys.executable, "-m", "keras_transformer_runtime", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert process.returncode == code
    assert message in process.stdout + unwrapped(process.stderr)
    imports = re.findall(r"^import time: .*\| +(\S+)$", process.stderr, re.MULTILINE)
    assert "keras_transformer_runtime.command" in imports
    assert not {"keras", "keras_transformer", "tensorflow", "ray"} & set(imports)
