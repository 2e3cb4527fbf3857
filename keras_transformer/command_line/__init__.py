"""The command `keras-transformer`: parses its arguments, and calls the library."""

import sys
import zipfile
from collections.abc import Callable
from typing import Any

import typer

from keras_transformer.command_line.messages import (
    in_options,
    stops_with_a_line,
    warnings_as_lines,
)
from keras_transformer.command_line.serving import serve
from keras_transformer.command_line.starting import starts_quietly
from keras_transformer.command_line.trained_model import (
    evaluate,
    export,
    import_,
    inspect,
    translate,
)
from keras_transformer.command_line.training import ListsInARow, train

# What installs a package that a command may find missing.
EXTRAS = {
    "ctranslate2": "ctranslate2",
    "huggingface_hub": "hub",
    "onnxruntime": "onnx",
    "prometheus_client": "serve",
    "pydantic": "serve",
    "rapidfuzz": "evaluation",
    "ray": "serve",
    "sacrebleu": "evaluation",
    "safetensors": "marian",
    "sentencex": "serve",
    "starlette": "serve",
    "tf2onnx": "onnx",
    "uvicorn": "serve",
}

app = typer.Typer(
    name="keras-transformer",
    help="Train, use and serve sequence-to-sequence Transformers. "
    "KERAS_BACKEND chooses tensorflow, jax or torch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _add(command: Callable[..., None], name: str | None = None, **options: Any) -> None:
    app.command(name, **options)(stops_with_a_line(command))


_add(starts_quietly(train), cls=ListsInARow)
for command in (translate, evaluate, export, inspect):
    _add(starts_quietly(command))
_add(starts_quietly(import_), "import")
_add(serve)


def main() -> None:
    """Runs the command; an error is a line on standard error and exit code 1."""
    try:
        with warnings_as_lines(_say):
            app()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        hint = f'. Install it: pip install "keras-transformer[{extra}]"'
        hint = "" if extra is None or "pip install" in str(error) else hint
        _say("error", f"{error}{hint}")
        sys.exit(1)
    except (
        *(ValueError, TypeError, OSError, RuntimeError, ImportError),
        *(FloatingPointError, zipfile.BadZipFile),  # a loss; a damaged `.keras`
    ) as error:
        _say("error", f"{error}")
        sys.exit(1)


def _say(kind: str, text: str) -> None:
    """Prints a line of the command that was typed."""
    commands: Any = typer.main.get_command(app)
    command = commands.commands.get(" ".join(sys.argv[1:2]))
    parameters = command.params if command else []
    typer.echo(f"{kind}: {in_options(text, parameters)}", err=True)
