"""What the commands that train share: their parameters, and their last lines."""

import contextlib
import dataclasses
import inspect
import pathlib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, NamedTuple, get_args, get_type_hints

import typer


class OptionTexts(NamedTuple):
    """What `--help` shows of the options.

    Attributes:
        headings: the headings by the first option below each.
        metavars: the names of values by option.
        names: the names of options that are words of Python.
        defaults: the texts in place of defaults that are `None`.
        off: the options that are off if they are `None`. The others are chosen from the
            text.
    """

    headings: Mapping[str, str]
    metavars: Mapping[str, str]
    names: Mapping[str, Sequence[str]]
    defaults: Mapping[str, str]
    off: Collection[str]


def recipe_parameters(
    recipe: type,
    texts: OptionTexts,
    read_options: Callable[[pathlib.Path], Mapping[str, object]],
    kinds: Mapping[str, object],
) -> list[inspect.Parameter]:
    """Returns the parameters of a command: `config`, and the fields of a recipe.

    Args:
        recipe: the dataclass. The annotation of a field has its help.
        texts: the `OptionTexts`.
        read_options: function that reads the options of a file.
        kinds: types on the command line that differ from those of the fields.
    """

    def read_config(
        context: typer.Context, config: pathlib.Path | None
    ) -> pathlib.Path | None:
        if config is not None:  # its options are the defaults of the command
            context.default_map = {**read_options(config)}
        return config

    config = typer.Option(
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=read_config,
        help="TOML file of options, such as options.toml of a run. Options on the "
        "command line override it.",
    )
    parameters = [_parameter("config", pathlib.Path | None, config, None)]
    hints = get_type_hints(recipe, include_extras=True)
    heading = ""
    for field in dataclasses.fields(recipe):
        heading = texts.headings.get(field.name, heading)
        kind, help = get_args(hints[field.name])
        label = _default_label(field, texts)
        is_chosen = label == "auto" and field.name not in kinds
        kind = kinds.get(field.name, kind)
        option = typer.Option(
            *texts.names.get(field.name, ()),
            help=help,
            metavar=texts.metavars.get(field.name),
            rich_help_panel=heading,
            show_default=label,
        )
        if is_chosen:
            option.metavar = f"<{get_args(kind)[0].__name__}>"
            option.parser = _auto_or(get_args(kind)[0])
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        parameters.append(_parameter(field.name, kind, option, default))
    return parameters


def _default_label(
    field: "dataclasses.Field[object]", texts: OptionTexts
) -> str | bool:
    """Returns what `--help` shows as the default of an option."""
    if field.name in texts.defaults:
        return texts.defaults[field.name]
    return "auto" if field.default is None and field.name not in texts.off else True


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


def as_fraction(value: str) -> float | None:
    """Returns a number or a percentage; `None` for another text, or a file."""
    number, is_percentage = value.removesuffix("%"), value.endswith("%")
    with contextlib.suppress(ValueError):
        fraction = float(number) / (100 if is_percentage else 1)
        return None if pathlib.Path(value).exists() else fraction
    return None


def print_next(output: str, weights: str, command: str) -> None:
    """Prints the selected weights, the file of the model, and the command to use it."""
    typer.echo(f"{'weights':12}{weights}")
    typer.echo(f"{'model':12}{pathlib.Path(output, 'model.keras')}")
    typer.echo(f"{'use':12}keras-transformer {command} {shlex.quote(output)}")
