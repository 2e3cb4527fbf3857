"""The command `train`: makes a `Recipe` from options and a file, and trains."""

import dataclasses
import inspect
import pathlib
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from keras_transformer.command_line.startup import import_keras_quietly
from keras_transformer.recipe import Recipe, read_options

# The headings of `--help`, by the first option below each.
HEADINGS = {
    "train": "Data",
    "preset": "Model",
    "epochs": "Training",
    "num_beams": "Search",
}


class TrainCommand(TyperCommand):
    """A command without arguments whose options may have several values in a row."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [option for option in self.params if option.multiple]
        names = {name for option in options for name in option.opts}
        repeated: list[str] = []
        option, values = "", 0
        for arg in args:
            if arg.startswith("--"):
                option, equals, _ = arg.partition("=")
                values = len(equals)
            else:
                values += 1
                if option in names and values > 1:
                    repeated.append(option)
            repeated.append(arg)
        return super().parse_args(ctx, repeated)


def train_command(**options: Any) -> None:
    """Train a model on parallel text. The same command resumes a stopped run.

    A text is two files, source and target, whose lines correspond, or one file
    with a tab between source and target; plain or .gz. The folder --output
    gets model.keras, figures.json, and options.toml to repeat the run.
    """
    del options["config"]
    recipe = Recipe(**options)
    import_keras_quietly()
    from keras_transformer.recipe import train

    try:
        figures = train(recipe).figures
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(f"\n{_stop_message(recipe)}") from None
    text = "test" if recipe.test else "validation"
    typer.echo(f"{text} text  {figures.sentences:,} sentences")
    typer.echo(f"{'bleu':12}{figures.bleu:8.2f}  {figures.bleu_signature}")
    typer.echo(f"{'chrf':12}{figures.chrf:8.2f}  {figures.chrf_signature}")
    penalty = figures.length_penalty
    if recipe.test:
        valid_bleu = figures.valid_bleu[str(penalty)]
        typer.echo(f"{'valid bleu':12}{valid_bleu:8.2f}  {figures.bleu_signature}")
    typer.echo(f"{'model':12}{pathlib.Path(recipe.output, 'model.keras')}")
    typer.echo(
        f"{'search':12}--num-beams {recipe.num_beams} --length-penalty {penalty}"
    )


def _stop_message(recipe: Recipe) -> str:
    """Returns how to continue a stopped run."""
    from keras_transformer.recipe.folder import latest_position

    position = latest_position(recipe.output)
    if position is None:
        return "Stopped before the first checkpoint. Run the same command to restart."
    if position.epochs >= recipe.epochs:
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
        metavar = "FILE..." if "list" in str(kind) else None
        option = typer.Option(help=help, metavar=metavar, rich_help_panel=heading)
        parameters.append(_parameter(field.name, kind, option, field.default))
    former = typer.Option(help="Former name of --r-drop.", hidden=True)
    parameters.append(_parameter("consistency", float | None, former, None))
    return parameters


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
