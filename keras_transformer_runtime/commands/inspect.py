"""The command `inspect`: describes files and folders of models."""

import pathlib
import re
import shutil
import textwrap
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from keras_transformer_runtime.commands.describe_models import (
    Facts,
    describe_ctranslate2,
    describe_keras_model,
    describe_onnx_encoder,
    describe_onnx_folder,
    describe_onnx_graph,
    describe_pretrained,
    describe_saved_model,
    describe_sentence_piece,
    describe_tokenizer,
    describe_versions,
    describe_weights,
)
from keras_transformer_runtime.commands.describe_runs import (
    describe_checkpoint,
    describe_checkpoints,
    describe_run,
)
from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.startup import import_keras_quietly

app = typer.Typer()

FIXED_SPACE = "\u00a0"  # at which `textwrap` does not break a line


class Kind(NamedTuple):
    """A kind of file or folder."""

    name: str
    matches: Callable[[pathlib.Path], bool]
    describe: Callable[[pathlib.Path], Facts]


def _ends(*endings: str) -> Callable[[pathlib.Path], bool]:
    return lambda path: path.is_file() and path.name.endswith(endings)


def _has(*patterns: str) -> Callable[[pathlib.Path], bool]:
    return lambda path: any(any(path.glob(pattern)) for pattern in patterns)


def _is_pretrained(path: pathlib.Path) -> bool:
    """Returns whether `config.json` is that of Hugging Face, not of a preset."""
    has_weights = _has("model.safetensors", "pytorch_model.bin", "source.spm")
    return (path / "config.json").is_file() and has_weights(path)


# Files of a folder that describe nothing alone.
PARTS = (
    *("config.json", "metadata.json", "model.bin", "saved_model.pb", "decoder.yml"),
    *("options.toml", "figures.json", "history.csv", "model.safetensors"),
)
# A path is of the first kind that matches.
KINDS = (
    Kind(".keras file", _ends(".keras"), describe_keras_model),
    Kind("tokenizer, .json", _ends(".json"), describe_tokenizer),
    Kind(
        "SentencePiece model, .model or .spm",
        _ends(".model", ".spm"),
        describe_sentence_piece,
    ),
    Kind("weights file, .weights.h5", _ends(".h5"), describe_weights),
    Kind("checkpoint, .npz", _ends(".npz"), describe_checkpoint),
    Kind("ONNX graph, .onnx", _ends(".onnx"), describe_onnx_graph),
    Kind("run, a folder", _has("options.toml"), describe_run),
    Kind("SavedModel", _has("saved_model.pb"), describe_saved_model),
    Kind("versions of a SavedModel", _has("[0-9]*/saved_model.pb"), describe_versions),
    Kind("CTranslate2 model", _has("model.bin"), describe_ctranslate2),
    Kind("ONNX model", _has("decoder_step.onnx", "encoder.onnx"), describe_onnx_folder),
    Kind("ONNX language model", _has("decoder.onnx"), describe_onnx_folder),
    Kind("ONNX encoder", _has("model.onnx"), describe_onnx_encoder),
    Kind("Marian's own files", _has("decoder.yml"), describe_pretrained),
    Kind("model of transformers", _is_pretrained, describe_pretrained),
    Kind("preset folder", _has("metadata.json", "config.json"), describe_keras_model),
    Kind("checkpoints of a run", _has("epoch-*.npz"), describe_checkpoints),
    Kind("folder with model.keras", _has("model.keras"), describe_keras_model),
)


@app.command("inspect")
@exits_on_interrupt
def inspect_command(
    path: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True,
            help="A .keras file, tokenizer, checkpoint or other file of a model, or "
            "the folder of a run, a preset, checkpoints, a SavedModel, or a model of "
            "CTranslate2, ONNX Runtime or Marian.",
        ),
    ],
) -> None:
    """Describe a file or folder of a model, and list the commands that take it."""
    path = path.parent if path.name in PARTS else path
    kind = find_kind(path)
    import_keras_quietly()
    facts = {"kind": kind.name.partition(",")[0], **kind.describe(path)}
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        for line in _lines(value, shutil.get_terminal_size().columns - width):
            typer.echo(f"{name:{width}}{line}")
            name = ""


def find_kind(path: pathlib.Path) -> Kind:
    """Returns the kind of a path."""
    for kind in KINDS:
        if kind.matches(path):
            return kind
    known = "; ".join(kind.name for kind in KINDS)
    raise ValueError(
        f"`path` must be of a known kind; received `path={str(path)!r}`, a "
        f"{'folder' if path.is_dir() else 'file'} of another kind. The known kinds "
        f"are: {known}."
    )


def _lines(value: object, width: int) -> list[str]:
    """Splits a value into lines: the entries of a list, and long texts at spaces."""
    if isinstance(value, list):
        return value
    # The spaces within `name dtype(size, size)` are kept.
    text = re.sub(r"\w+ \w+\([^)]*\)", _with_fixed_spaces, str(value))
    lines = textwrap.wrap(
        text, max(width, 40), break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(FIXED_SPACE, " ") for line in lines or [""]]


def _with_fixed_spaces(match: re.Match[str]) -> str:
    return match.group().replace(" ", FIXED_SPACE)
