"""Loads a trained model: of a run, a preset or a file, or of another library."""

import pathlib
from collections.abc import Sequence
from typing import TypeAlias

import keras

from keras_transformer.interoperability.families import FAMILIES
from keras_transformer.interoperability.pretrained import load_pretrained
from keras_transformer.models import (
    CausalLM,
    GenerativeModel,
    Seq2Seq,
    TextClassifier,
    TextEncoder,
    TokenClassifier,
)
from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.models.file_checks import check_keras_file
from keras_transformer.models.preset_folders import HUB, download_preset
from keras_transformer.types import Data
from keras_transformer_runtime.files import read_json
from keras_transformer_runtime.model_paths import find_model

AnyEncoder: TypeAlias = TextEncoder | TextClassifier | TokenClassifier
AnyModel: TypeAlias = GenerativeModel | EncoderModel


def load_starting_model(
    start: str, languages: Sequence[str] | None = None
) -> GenerativeModel:
    """Loads the model that a run starts from.

    `start` is the path of a `.keras` file, the folder of a run, of a preset or of a
    model of transformers, or the handle of a preset on the Hugging Face Hub.
    `languages` are those of source and target.
    """
    model = _load_start(start, languages)
    if not isinstance(model, GenerativeModel):
        raise ValueError(
            "`start_from` must be a model that generates text; received "
            f"{start!r}, a `{type(model).__name__}`."
        )
    return model


def load_starting_encoder(start: str) -> TextEncoder:
    """Loads the encoder that a run starts from; see `load_starting_model`.

    That of a classifier is taken.
    """
    model = _load_start(start)
    if isinstance(model, TextClassifier | TokenClassifier):
        return model.encoder
    if not isinstance(model, TextEncoder):
        raise ValueError(
            "`start_from` must be a `TextEncoder` or a classifier; received "
            f"{start!r}, a `{type(model).__name__}`."
        )
    return model


def _load_start(start: str, languages: Sequence[str] | None = None) -> AnyModel:
    path = download_preset(start) if start.startswith(HUB) else pathlib.Path(start)
    kind = _model_type(path)
    if kind is None:
        return load_model(path)
    pair = {}
    if languages and kind in FAMILIES and FAMILIES[kind].has_languages:
        source, target = languages
        pair = {"source_language": source, "target_language": target}
    return load_pretrained(path, **pair)


def _model_type(path: pathlib.Path) -> str | None:
    """Returns the family of a folder of transformers; `None` for other paths."""
    if (path / "model.keras").is_file() or not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    is_ours = "registered_name" in config or "model_type" not in config
    return None if is_ours else str(config["model_type"])


def load_trained_model(path: pathlib.Path) -> GenerativeModel:
    """Loads a model that generates text, without executing code from its file."""
    model = load_model(path)
    if not isinstance(model, GenerativeModel):
        raise ValueError(
            f"{path} must be a model that generates text; it is a "
            f"{type(model).__name__}. Use the command predict, embed or evaluate."
        )
    return model


def load_encoder_model(path: pathlib.Path) -> AnyEncoder:
    """Loads a classifier or an encoder, without executing code from its file.

    The folder of a model of transformers is loaded too.
    """
    model = load_model(path) if _model_type(path) is None else load_pretrained(path)
    if not isinstance(model, TextEncoder | TextClassifier | TokenClassifier):
        raise ValueError(
            f"{path} must be a classifier or an encoder; it is a "
            f"{type(model).__name__}. Use the command translate or generate."
        )
    return model


def load_model(path: pathlib.Path) -> AnyModel:
    """Loads a model of this library, without executing code from its file."""
    path = find_model(path)
    if path.is_dir():
        preset: AnyModel = _class_of_preset(path).from_preset(str(path))
        return preset
    try:
        content = check_keras_file(path)
        if str(content.get("module")).partition(".")[0] == "keras":
            raise _another_class(path, str(content.get("class_name")))
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except _AnotherClass:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        is_of_system = isinstance(error, OSError) and error.errno is not None
        if is_of_system or isinstance(error, MemoryError):
            raise
        raise ValueError(
            f"{path} must be a .keras file of this library; it is damaged or another "
            f"file: {error}"
        ) from error
    if not isinstance(model, GenerativeModel | EncoderModel):
        raise _another_class(path, type(model).__name__)
    return model


def _class_of_preset(folder: pathlib.Path) -> Data:
    """Returns the class that the folder of a preset names; `Seq2Seq` if it is damaged.

    `from_preset` then says what is wrong.
    """
    classes = (CausalLM, TextEncoder, TextClassifier, TokenClassifier)
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return Seq2Seq
    name = str(config.get("registered_name")).partition(">")[2]
    return {each.__name__: each for each in classes}.get(name, Seq2Seq)


class _AnotherClass(ValueError):
    pass


def _another_class(path: pathlib.Path, name: str) -> ValueError:
    return _AnotherClass(
        f"{path} must contain a model of this library, such as a Seq2Seq; it contains "
        f"a {name}."
    )
