"""The command `keras-transformer`: parses its arguments and calls the library.

The modules import Keras only inside functions, so that `--help` and errors in the
arguments are printed without waiting for it.
"""

import sys
import zipfile
from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperGroup

from keras_transformer import __version__
from keras_transformer.command_line.evaluate import evaluate_command
from keras_transformer.command_line.generate import generate_command
from keras_transformer.command_line.inspect import inspect_command
from keras_transformer.command_line.messages import (
    exits_on_interrupt,
    prints_warnings,
    with_option_names,
)
from keras_transformer.command_line.model_files import export_command, import_command
from keras_transformer.command_line.serve import serve_command
from keras_transformer.command_line.shortlist import shortlist_command
from keras_transformer.command_line.train import TrainCommand, train_command
from keras_transformer.command_line.translate import translate_command
from keras_transformer_runtime.packages import with_advice

app = typer.Typer(
    name="keras-transformer",
    help="Train, use and serve sequence-to-sequence Transformers and language models. "
    "The environment variable KERAS_BACKEND selects tensorflow, jax or torch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(version: bool) -> None:
    if version:
        typer.echo(f"keras-transformer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Options before the name of a command."""


app.command("train", cls=TrainCommand)(exits_on_interrupt(train_command))
COMMANDS: dict[str, Callable[..., None]] = {
    "translate": translate_command,
    "generate": generate_command,
    "evaluate": evaluate_command,
    "export": export_command,
    "inspect": inspect_command,
    "import": import_command,
    "serve": serve_command,
    "shortlist": shortlist_command,
}
for name, command in COMMANDS.items():
    app.command(name)(exits_on_interrupt(command))


def main() -> None:
    """Runs the command.

    An error is printed as one line on standard error, with exit code 1.
    """
    try:
        with prints_warnings(_print_message):
            app()
    except ModuleNotFoundError as error:
        _print_message("error", with_advice(error))
        sys.exit(1)
    except (
        *(ValueError, TypeError, OSError, RuntimeError, ImportError),
        *(FloatingPointError, zipfile.BadZipFile),  # NaN loss; damaged `.keras` file
    ) as error:
        _print_message("error", f"{error}")
        sys.exit(1)


def _print_message(kind: str, text: str) -> None:
    """Prints an error or a warning with the options of the command in `sys.argv`."""
    group = typer.main.get_command(app)
    commands = group.commands if isinstance(group, TyperGroup) else {}
    command = commands.get(" ".join(sys.argv[1:2]))
    parameters = command.params if command else []
    typer.echo(f"{kind}: {with_option_names(text, parameters)}", err=True)
