"""The command `train`: a `Recipe` from options and a file, and its run."""

import dataclasses
import inspect
import pathlib
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from keras_transformer.recipe import Recipe, read_options

# The headings of `--help`, by the first option under each.
HEADINGS = {
    "train": "Data",
    "preset": "Model",
    "epochs": "Training",
    "num_beams": "Search",
}


class ListsInARow(TyperCommand):
    """A command without arguments whose options take several values in a row."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [option for option in self.params if option.multiple]
        many = {name for option in options for name in option.opts}
        spread: list[str] = []
        option, values = "", 0
        for arg in args:
            if arg.startswith("--"):
                option, equals, _ = arg.partition("=")
                values = len(equals)
            else:
                values += 1
                if option in many and values > 1:
                    spread.append(option)
            spread.append(arg)
        return super().parse_args(ctx, spread)


def train(**options: Any) -> None:
    """Train a model on parallel text. After a stop, the same command goes on.

    Text is two files, source and target, whose lines correspond, or one with
    a tab between the sides; plain or .gz. The folder of --output gets
    model.keras, figures.json, and options.toml, to make the run again.
    """
    del options["config"]
    recipe = Recipe(**options)

    from keras_transformer.recipe import train

    try:
        figures = train(recipe).figures
    except KeyboardInterrupt:
        typer.echo(_describe_stop(recipe.output), err=True)
        raise typer.Exit(130) from None
    part = "test" if recipe.test else "validation"
    typer.echo(f"{part} text  {figures['sentences']:,} sentences")
    for name in ("bleu", "chrf"):
        signature = figures[f"{name}_signature"]
        typer.echo(f"{name:12}{figures[name]:8.2f}  {signature}")
    penalty = figures["length_penalty"]
    if recipe.test:
        valid_bleu = figures["valid_bleu"][str(penalty)]
        typer.echo(f"{'valid bleu':12}{valid_bleu:8.2f}  {figures['bleu_signature']}")
    typer.echo(f"{'model':12}{pathlib.Path(recipe.output, 'model.keras')}")
    typer.echo(
        f"{'search':12}--num-beams {recipe.num_beams} --length-penalty {penalty}"
    )


def _describe_stop(output: str) -> str:
    from keras_transformer.recipe.folder import saved_position

    position = saved_position(output)
    if position is None:
        return "\nstopped before the first checkpoint: nothing of the training is saved"
    epochs, batches = position
    return f"\nstopped; the same command goes on after epoch {epochs}, batch {batches}"


def _read_config(context: typer.Context, config: pathlib.Path | None) -> Any:
    """Makes what is in the file the options' defaults."""
    if config is not None:
        context.default_map = read_options(config)
    return config


def _parameters() -> list[inspect.Parameter]:
    """The options of the command: a file, and those of `Recipe`."""
    config = typer.Option(
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=_read_config,
        help="TOML file of options, such as options.toml of a run; what else is "
        "given here overrides it.",
    )
    parameters = [_parameter("config", pathlib.Path | None, config, None)]
    kinds = get_type_hints(Recipe, include_extras=True)
    heading = ""
    for field in dataclasses.fields(Recipe):
        heading = HEADINGS.get(field.name, heading)
        kind, help = get_args(kinds[field.name])
        metavar = "FILE..." if "list" in str(kind) else None
        option = typer.Option(help=help, metavar=metavar, rich_help_panel=heading)
        parameters.append(_parameter(field.name, kind, option, field.default))
    return parameters


def _parameter(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


train.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
