"""The command `keras-transformer`: parses its arguments, and calls the library."""

import sys
import zipfile

import typer

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
app.command(cls=ListsInARow)(starts_quietly(train))
for command in (translate, evaluate, export, inspect):
    app.command()(starts_quietly(command))
app.command("import")(starts_quietly(import_))
app.command()(serve)


def main() -> None:
    """Runs the command; an error is a line on standard error and exit code 1."""
    try:
        app()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        hint = f'. Install it: pip install "keras-transformer[{extra}]"'
        hint = "" if extra is None or "pip install" in str(error) else hint
        typer.echo(f"error: {error}{hint}", err=True)
        sys.exit(1)
    except (
        *(ValueError, TypeError, OSError, RuntimeError, ImportError),
        *(FloatingPointError, zipfile.BadZipFile),  # a loss; a damaged `.keras`
    ) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
