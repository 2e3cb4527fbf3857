"""Loads a trained model: from the folder of a run, a preset, or a `.keras` file."""

import pathlib
import shlex
import zipfile
from typing import TYPE_CHECKING

from keras_transformer_runtime.files import read_json

if TYPE_CHECKING:
    from keras_transformer.models import GenerativeModel


def load_trained_model(path: pathlib.Path) -> "GenerativeModel":
    """Loads a model of this library without executing code from its file.

    Args:
        path: a `.keras` file, the folder of a complete run, or the folder of a preset.

    Returns:
        The model, such as a `Seq2Seq` or an `Ensemble`, not compiled.

    Raises:
        FileNotFoundError: if `path` does not exist.
        ValueError: if `path` is not a model of this library, or is damaged.
    """
    import keras

    from keras_transformer.models import CausalLM, GenerativeModel, Seq2Seq
    from keras_transformer.models.file_checks import check_keras_file

    path = find_model(path)
    if path.is_dir():
        cls = CausalLM if _is_causal(path) else Seq2Seq
        return cls.from_preset(str(path))
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
    if not isinstance(model, GenerativeModel):
        raise _another_class(path, type(model).__name__)
    return model


def _is_causal(folder: pathlib.Path) -> bool:
    """Returns whether the folder of a preset says that it is that of a `CausalLM`."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):  # `from_preset` says what is wrong
        return False
    return str(config.get("registered_name")).endswith(">CausalLM")


class _AnotherClass(ValueError):
    pass


def _another_class(path: pathlib.Path, name: str) -> ValueError:
    return _AnotherClass(
        f"{path} must contain a model of this library, such as a Seq2Seq; it contains "
        f"a {name}."
    )


def find_model(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of a model: a `.keras` file or the folder of a preset.

    Args:
        path: one of these, or the folder of a run, which contains a `.keras` file.

    Returns:
        The path of the model.

    Raises:
        FileNotFoundError: if `path` does not exist.
        ValueError: if `path` cannot be a model.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if (path / "model.keras").is_file():
        path = path / "model.keras"
    if path.is_dir():
        _check_is_preset(path)
    elif path.suffix != ".keras":
        raise ValueError(
            f"{path} must be a .keras file, the folder of a run, or the folder of a "
            "preset; it is another kind of file."
        )
    elif not (path.is_file() and zipfile.is_zipfile(path)):
        raise ValueError(
            f"{path} must be a .keras file; it is damaged or another kind of file."
        )
    return path


def _check_is_preset(folder: pathlib.Path) -> None:
    if (folder / "config.json").exists() or (folder / "metadata.json").exists():
        return  # `from_preset` checks the rest
    options = folder / "options.toml"
    if options.exists():
        raise ValueError(
            f"{folder} has no model.keras, because its run is not complete. To "
            "complete it, run: keras-transformer train "
            f"{shlex.join(['--config', str(options), '--output', str(folder)])}"
        )
    if (folder / "saved_model.pb").exists():
        raise ValueError(
            f"{folder} must be a Keras model; it is a SavedModel, which `serve` and "
            "TensorFlow load. Give the .keras file from which it was exported."
        )
    raise ValueError(
        f"{folder} must contain model.keras, as the folder of a run does, or "
        "metadata.json, as the folder of a preset does."
    )
