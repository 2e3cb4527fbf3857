"""Loads the trained model that a path leads to: of a run, of a preset, or its file."""

import pathlib
import shlex
import zipfile
from typing import Any


def load(path: pathlib.Path) -> Any:
    """Loads a model of this library, and runs no code that its file may hold.

    Args:
        path: a `.keras` file, the folder of a run that has ended, or one of a preset.

    Returns:
        The `Seq2Seq` or `Ensemble`, not compiled.

    Raises:
        FileNotFoundError: if there is nothing.
        ValueError: if it is something else, or damaged.
    """
    import keras

    from keras_transformer.models import Ensemble, Seq2Seq

    path = model_path(path)
    if path.is_dir():
        return Seq2Seq.from_preset(str(path))
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except KeyError as error:  # a zip file of something else
        raise ValueError(f"{path} must be a .keras file: {error.args[0]}") from error
    if not isinstance(model, Seq2Seq | Ensemble):
        raise ValueError(
            f"{path} must hold a Seq2Seq or an Ensemble; it holds a "
            f"{type(model).__name__}."
        )
    return model


def model_path(path: pathlib.Path) -> pathlib.Path:
    """The model that a path leads to: a `.keras` file, or the folder of a preset.

    Args:
        path: one of these, or the folder of a run, which has a `.keras` file.

    Returns:
        The path of the model.

    Raises:
        FileNotFoundError: if there is nothing.
        ValueError: if there can be none.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}.")
    if (path / "model.keras").is_file():
        path = path / "model.keras"
    if path.is_dir():
        _check_is_preset(path)
    elif path.suffix != ".keras":
        raise ValueError(
            f"{path} must be a .keras file, the folder of a run, or one of a preset; "
            "it is a file of another kind."
        )
    elif not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} must be a .keras file; it is damaged, or of another kind."
        )
    return path


def _check_is_preset(folder: pathlib.Path) -> None:
    if (folder / "config.json").exists() or (folder / "metadata.json").exists():
        return  # what may be wrong with it, `from_preset` says
    options = folder / "options.toml"
    if options.exists():
        raise ValueError(
            f"{folder} has no model.keras: its run has not ended. This ends it: "
            f"keras-transformer train {shlex.join(['--config', str(options)])} "
            f"{shlex.join(['--output', str(folder)])}"
        )
    if (folder / "saved_model.pb").exists():
        raise ValueError(
            f"{folder} is a SavedModel, which `serve` and TensorFlow take; give the "
            ".keras file that it was exported from."
        )
    raise ValueError(
        f"{folder} must have model.keras, as the folder of a run, or metadata.json, "
        "as that of a preset."
    )
