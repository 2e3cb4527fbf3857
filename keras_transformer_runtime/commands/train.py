"""The command `train`: makes a `Recipe` from options and a file, and trains."""

import contextlib
import dataclasses
import inspect
import pathlib
import shlex
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import ManyValuesCommand
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.runs.early_checks import check_early
from keras_transformer_runtime.runs.folder import began_recipe, latest_position
from keras_transformer_runtime.runs.option_checks import SIZES
from keras_transformer_runtime.runs.other_names import OF_TRAIN
from keras_transformer_runtime.runs.recipe import Recipe, read_options

app = typer.Typer()

# The headings of `--help`, by the first option below each.
HEADINGS = {
    "train": "Data",
    "documents": "Running text, with --model causal",
    "tokenizer": "Vocabulary",
    "model": "Model",
    "start_from": "Fine-tuning",
    "epochs": "Training",
    "num_beams": "Search",
}
# Options whose default `None` is not a choice from the text.
_METAVARS = {name: "FILE..." for name in ("train", "valid", "test")}
_METAVARS["user_defined_symbols"] = "TEXT..."
_METAVARS["columns"] = "NAME..."
_METAVARS["languages"] = "SOURCE TARGET"
_METAVARS["lora_targets"] = "NAME..."
# Options whose names are words of Python.
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
    del options["config"]
    for name in ("valid", "test"):
        options[name] = _files_or_fraction(options[name])
    options["schedule"] = options["schedule"].replace("-", "_")
    recipe = Recipe(**options)
    check_early(recipe)
    # The line appears before the slow imports.
    with Display(recipe.verbose if recipe.verbose == 0 else 2).stage(
        "Loading Keras and TensorFlow"
    ):
        import_keras_quietly()
        from keras_transformer.recipe import train

    try:
        figures = train(recipe).figures
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(f"\n{_stop_message(recipe)}") from None
    if recipe.verbose == 0:
        for line in figures.lines():
            typer.echo(line)
    typer.echo(f"{'weights':12}{figures.weights}")
    typer.echo(f"{'model':12}{pathlib.Path(recipe.output, 'model.keras')}")
    command = "translate" if recipe.model == "seq2seq" else "generate"
    typer.echo(f"{'use':12}keras-transformer {command} {shlex.quote(recipe.output)}")


def _files_or_fraction(values: list[str] | float | None) -> list[str] | float | None:
    """Returns a text of the command: paths, or a number that is not a file."""
    if isinstance(values, list) and len(values) == 1:
        number, is_percentage = values[0].removesuffix("%"), values[0].endswith("%")
        with contextlib.suppress(ValueError):
            fraction = float(number) / (100 if is_percentage else 1)
            return values if pathlib.Path(values[0]).exists() else fraction
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


def _read_config(
    context: typer.Context, config: pathlib.Path | None
) -> pathlib.Path | None:
    """Makes the options of a file the defaults of the command."""
    if config is not None:
        context.default_map = read_options(config)
    return config


def _parameters() -> list[inspect.Parameter]:
    """Returns the parameters of the command: `config`, and the fields of `Recipe`."""
    config = typer.Option(
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=_read_config,
        help="TOML file of options, such as options.toml of a run. Options on the "
        "command line override it.",
    )
    parameters = [_parameter("config", pathlib.Path | None, config, None)]
    hints = get_type_hints(Recipe, include_extras=True)
    heading = ""
    for field in dataclasses.fields(Recipe):
        heading = HEADINGS.get(field.name, heading)
        kind, help = get_args(hints[field.name])
        is_text = field.name in ("train", "valid", "test")
        if is_text and field.name != "train":
            kind = list[str] | None
        is_chosen = _default_label(field) == "auto"
        option = typer.Option(
            *_NAMES.get(field.name, ()),
            help=help,
            metavar=_METAVARS.get(field.name),
            rich_help_panel=heading,
            show_default=_default_label(field),
        )
        if is_chosen and not is_text:
            option.metavar = f"<{get_args(kind)[0].__name__}>"
            option.parser = _auto_or(get_args(kind)[0])
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        parameters.append(_parameter(field.name, kind, option, default))
    return parameters


def _default_label(field: dataclasses.Field[object]) -> str | bool:
    """Returns what `--help` shows as the default of an option."""
    if field.name in _DEFAULTS:
        return _DEFAULTS[field.name]
    return "auto" if field.default is None and field.name not in _OFF else True


def _auto_or(kind: type) -> Callable[[str], object]:
    """Returns a parser of `auto`, which is `None`, or a value."""

    def parse(value: str) -> object:
        if value == "auto":
            return None
        try:
            return kind(value)
        except ValueError:
            raise typer.BadParameter(
                f"{value!r} is neither 'auto' nor of type {kind.__name__}."
            ) from None

    return parse


def _parameter(
    name: str, kind: object, option: object, default: object
) -> inspect.Parameter:
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


train_command.__signature__ = (  # type: ignore[attr-defined]
    inspect.Signature(_parameters())
)
