"""The command `keras-transformer`: a table of its commands, each imported when called.

The modules of `commands` declare the options with Typer, and import Keras only inside
functions: `--help` and errors in the options are printed without waiting for it.
"""

import contextlib
import io
import sys
import zipfile
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

from keras_transformer_runtime import __version__
from keras_transformer_runtime.commands.messages import (
    prints_warnings,
    with_option_names,
)
from keras_transformer_runtime.packages import with_advice
from keras_transformer_runtime.runs.label_recipe import TASKS, task_of_options

# The commands in the order of `--help`, and their modules.
COMMANDS = {
    "train": "train",
    "translate": "translate",
    "generate": "generate",
    "predict": "predict",
    "embed": "embed",
    "evaluate": "evaluate",
    "export": "model_files",
    "import": "model_files",
    "check-pretrained": "check_pretrained",
    "inspect": "inspect",
    "serve": "serve",
}


def _print_version(version: bool) -> None:
    if version:
        typer.echo(f"keras-transformer {__version__}")
        raise typer.Exit


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


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Returns the application, with the command that is called."""
    app = typer.Typer(
        name="keras-transformer",
        help="Train, use and serve sequence-to-sequence Transformers, language models "
        "and classifiers. The environment variable KERAS_BACKEND selects tensorflow, "
        "jax or torch.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    called = [COMMANDS[name] for name in arguments[:1] if name in COMMANDS]
    if called == ["train"] and _trains_labels(arguments):
        called = ["train_labels"]
    for name in called or dict.fromkeys(COMMANDS.values()):
        module = import_module(f"keras_transformer_runtime.commands.{name}")
        app.add_typer(module.app)
    return app


def _trains_labels(arguments: Sequence[str]) -> bool:
    """Returns whether the arguments of `train` have a task with its own options."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    given = dict(zip(words, words[1:], strict=False))
    task = given.get("--task")
    if task is None and "--config" in given:
        with contextlib.suppress(ValueError, OSError):  # the command says what is wrong
            task = task_of_options(given["--config"])
    return task in TASKS


def main() -> None:
    """Runs the command with the arguments in `sys.argv`.

    An error is printed as one line on standard error, with exit code 1.
    """
    if sys.stdout is None:
        _print_message(
            "error",
            "Standard output must be open; it is closed. To discard what the command "
            "prints, add `>/dev/null`.",
        )
        sys.exit(1)
    _write_utf_8()
    app = make_app(sys.argv[1:])
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


def _write_utf_8() -> None:
    """Writes UTF-8 in every locale, as the UTF-8 mode of Python does.

    Other encodings lack characters of texts and of `--help`.
    """
    for stream, errors in (
        (sys.stdout, "surrogateescape"),  # of paths
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _print_message(kind: str, text: str) -> None:
    """Prints an error or a warning with the options of the command in `sys.argv`."""
    group = typer.main.get_command(make_app(sys.argv[1:]))
    commands = group.commands if isinstance(group, TyperGroup) else {}
    command = commands.get(" ".join(sys.argv[1:2]))
    parameters = command.params if command else []
    typer.echo(f"{kind}: {with_option_names(text, parameters)}", err=True)
