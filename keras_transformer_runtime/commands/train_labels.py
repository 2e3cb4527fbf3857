"""The command `train --task classify` or `--task tag`: trains a classifier."""

import inspect
import pathlib
from typing import Any

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
from keras_transformer_runtime.files import read_toml
from keras_transformer_runtime.runs.early_checks import check_early_labels
from keras_transformer_runtime.runs.folder import latest_position
from keras_transformer_runtime.runs.label_recipe import LabelRecipe
from keras_transformer_runtime.runs.option_checks import SIZES

app = typer.Typer()

_TEXTS = OptionTexts(
    headings={
        "task": "Data",
        "tokenizer": "Vocabulary",
        "preset": "Model",
        "start_from": "Fine-tuning",
        "epochs": "Training",
    },
    metavars={
        "task": "classify|tag",
        **dict.fromkeys(("train", "valid", "test"), "FILE"),
        "columns": "NAME...",
    },
    names={"start_from": ["--from"]},
    defaults={
        **dict.fromkeys(SIZES, "that of the preset"),
        "valid": "10% of the training data",
    },
    off={"test", "columns", "start_from", "clip_norm", "patience", "verbose"},
)


@app.command("train", cls=ManyValuesCommand)
@exits_on_interrupt
def train_labels_command(**options: Any) -> None:
    """Train a classifier of texts or words. The same command resumes a stopped run.

    --task classify reads texts and labels: .tsv, .csv or .jsonl, with the
    columns text and label, or those that --columns names: one or two columns
    of texts, then that of the label. --task tag reads words and tags in columns
    (CoNLL), with an empty line after each sentence, or .jsonl. Options with the
    value auto are chosen from the data and printed. The folder --output has
    model.keras, figures.json, confusion_matrix.png, and options.toml to repeat
    the run.
    """
    del options["config"]
    for name in ("valid", "test"):
        if isinstance(options[name], str):
            fraction = as_fraction(options[name])
            options[name] = options[name] if fraction is None else fraction
    options["columns"] = options["columns"] or None
    options["schedule"] = options["schedule"].replace("-", "_")
    recipe = LabelRecipe(**options)
    check_early_labels(recipe)
    import_recipes(recipe.verbose)
    from keras_transformer.recipe import train_labels

    try:
        figures = train_labels(recipe).figures
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(f"\n{_stop_message(recipe)}") from None
    if recipe.verbose == 0:
        for line in figures.scores.lines():
            typer.echo(line)
    print_next(recipe.output, figures.weights, "predict")


def _stop_message(recipe: LabelRecipe) -> str:
    """Returns how to continue a stopped run."""
    position = latest_position(recipe.output)
    if position is None:
        return "Stopped before the first checkpoint. Run the same command to restart."
    return f"Stopped. Run the same command to resume at {position.resumes_at}."


def _read_options(path: pathlib.Path) -> dict[str, object]:
    LabelRecipe.from_toml(path)  # checks the options
    return read_toml(path)


train_labels_command.__signature__ = (  # type: ignore[attr-defined]
    inspect.Signature(
        recipe_parameters(
            LabelRecipe,
            _TEXTS,
            _read_options,
            kinds=dict.fromkeys(("valid", "test"), str | None),
        )
    )
)
