"""Finds the file of a trained model, or its folder, and versions of a SavedModel."""

import pathlib
import shlex
import zipfile


def find_model(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of a model: a `.keras` file or the folder of a preset."""
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


def is_version(name: str) -> bool:
    """Returns whether a name is that of a version of a SavedModel, such as 2."""
    return name.isascii() and name.isdigit() and str(int(name)) == name


def saved_model_of(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of a SavedModel, or of its latest version, or `None`."""
    if (path / "saved_model.pb").is_file():
        return path
    versions = [
        each for each in path.glob("*/saved_model.pb") if is_version(each.parent.name)
    ]
    if not versions:
        return None
    return max(versions, key=lambda each: int(each.parent.name)).parent


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
