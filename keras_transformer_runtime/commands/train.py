"""The command `train`: makes a `Recipe` from options and a file, and trains."""

import enum
import inspect
import pathlib
from typing import Annotated, Any

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import ManyValuesCommand
from keras_transformer_runtime.commands.recipe_options import (
    OptionTexts,
    as_fraction,
    print_next,
    recipe_parameters,
)
from keras_transformer_runtime.commands.startup import import_recipes
from keras_transformer_runtime.runs.early_checks import check_early
from keras_transformer_runtime.runs.folder import began_recipe, latest_position
from keras_transformer_runtime.runs.option_checks import SIZES
from keras_transformer_runtime.runs.other_names import OF_TRAIN
from keras_transformer_runtime.runs.recipe import Recipe, read_options

app = typer.Typer()

_HEADINGS = {
    "train": "Data",
    "documents": "Running text, with --model causal",
    "tokenizer": "Vocabulary",
    "model": "Model",
    "start_from": "Fine-tuning",
    "epochs": "Training",
    "num_beams": "Search",
}
_METAVARS = {name: "FILE..." for name in ("train", "valid", "test")}
_METAVARS["user_defined_symbols"] = "TEXT..."
_METAVARS["columns"] = "NAME..."
_METAVARS["languages"] = "SOURCE TARGET"
_METAVARS["lora_targets"] = "NAME..."
_NAMES = {"start_from": ["--from"]}
_DEFAULTS = {
    **dict.fromkeys(SIZES, "that of the preset"),
    "positions": "sinusoidal; causal: rotary",
    "blocks": "plain; causal: modern",
    "label_smoothing": "0.1; causal: 0",
    "max_length": "256; --from: that of the model",
    "attention_dropout": "0; --from: that of the model",
    "lora_alpha": "twice the rank",
    "lora_targets": "all",
}
_OFF = {
    *("test", "start_from", "subword_sampling", "patience", "verbose", "tokenizer"),
    *("languages", "columns", "steps", "clip_norm", "lora"),
}


_TASKS = typer.Option(
    help="What is trained. generate: a model that generates text; classify and tag: a "
    "classifier of texts or words, with the options of train --task classify --help.",
    rich_help_panel="Data",
)


class Task(enum.StrEnum):
    """The values of `--task`."""

    generate = "generate"
    classify = "classify"
    tag = "tag"


class TrainCommand(ManyValuesCommand):
    """The command, which answers the names of other toolkits."""

    table = OF_TRAIN


@app.command("train", cls=TrainCommand)
@exits_on_interrupt
def train_command(**options: Any) -> None:
    """Train a model on text. The same command resumes a stopped run.

    A text consists of two files, source and target, whose lines correspond, or
    of one file with both: .tsv (a tab between them), .csv or .jsonl, of which
    --columns names two columns; plain or .gz. With --model causal, it consists of
    files of running text; a row of a .csv or .jsonl file is a document. Several
    corpora are shuffled as one, or have weights: --train a.tsv:2 b.tsv:1. Options
    with the value auto are chosen from the text and printed. The folder --output
    contains model.keras, figures.json, and options.toml to repeat the run.
    """
    del options["config"], options["task"]
    for name in ("valid", "test"):
        options[name] = _files_or_fraction(options[name])
    options["schedule"] = options["schedule"].replace("-", "_")
    recipe = Recipe(**options)
    check_early(recipe)
    import_recipes(recipe.verbose)
    from keras_transformer.recipe import train

    try:
        figures = train(recipe).figures
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(f"\n{_stop_message(recipe)}") from None
    if recipe.verbose == 0:
        for line in figures.lines():
            typer.echo(line)
    command = "translate" if recipe.model == "seq2seq" else "generate"
    print_next(recipe.output, figures.weights, command)


def _files_or_fraction(values: list[str] | float | None) -> list[str] | float | None:
    """Returns a text of the command: paths, or a number that is not a file."""
    if isinstance(values, list) and len(values) == 1:
        fraction = as_fraction(values[0])
        return values if fraction is None else fraction
    return values or None


def _stop_message(recipe: Recipe) -> str:
    """Returns how to continue a stopped run."""
    position = latest_position(recipe.output)
    if position is None:
        return "Stopped before the first checkpoint. Run the same command to restart."
    epochs = recipe.epochs or began_recipe(pathlib.Path(recipe.output)).epochs
    if position.epochs >= epochs:
        return (
            "Stopped after the last epoch. Run the same command to evaluate the model."
        )
    return f"Stopped. Run the same command to resume at {position.resumes_at}."


_parameters = recipe_parameters(
    Recipe,
    OptionTexts(_HEADINGS, _METAVARS, _NAMES, _DEFAULTS, _OFF),
    read_options,
    kinds=dict.fromkeys(("valid", "test"), list[str] | None),
)
_task = inspect.Parameter(
    "task",
    inspect.Parameter.KEYWORD_ONLY,
    default=Task.generate,
    annotation=Annotated[Task, _TASKS],
)
train_command.__signature__ = (  # type: ignore[attr-defined]
    inspect.Signature([_task, *_parameters])
)
