"""Finds the versions of a model: folders 1, 2, …, as for TensorFlow Serving."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.engines.model_description import FILE
from keras_transformer_runtime.model_paths import is_version
from keras_transformer_runtime.packages import require_extra
from keras_transformer_runtime.serving.server_options import ModelOptions


class VersionFolder(NamedTuple):
    """The folder of a version, and the name of its engine."""

    folder: pathlib.Path
    engine: str


def selected_versions(options: ModelOptions) -> dict[int, VersionFolder]:
    """Returns the versions to serve by number, in ascending order."""
    found = _versions(options.folder, options.chosen_engine)
    if options.versions == "all":
        return found
    if options.versions == "latest":
        return dict([*found.items()][-1:])
    return {number: found[number] for number in found if number in options.versions}


def check_versions(models: Mapping[str, ModelOptions]) -> None:
    """Checks that every model has a version to serve, and its engine is installed."""
    engines = set()
    for name, options in models.items():
        selected = selected_versions(options)
        engines |= {version.engine for version in selected.values()}
        if not options.wait_for_versions and not selected:
            kind = {
                "auto": "a SavedModel or a model for CTranslate2",
                "ctranslate2": "a model for CTranslate2",
                "saved_model": "a SavedModel",
            }[options.chosen_engine]
            raise ValueError(
                f"`folder` of the model {name} must be a run, {kind}, or a folder of "
                "versions, in folders named 1, 2, …, that `versions` selects; received "
                f"folder={options.folder}, versions={options.versions}. Export a "
                "version, or set `wait_for_versions` to start without one."
            )
        for version in selected.values():
            encoder = _encoder_of(version.folder)
            if encoder is not None:
                check_encoder_options(options, encoder)
    if "saved_model" in engines:
        require_extra("tensorflow", "The engine of SavedModels")


def check_encoder_options(options: ModelOptions, encoder: EncoderDescription) -> None:
    """Checks that no option of a classifier or an encoder is for generated texts."""
    for name in ("languages", "split_sentences", "dictionary"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"`{name}` must be given for models that generate texts alone; "
                f"received it for {options.folder}, whose task is {encoder.task!r}. "
                f"Remove `{name}`, or set it for other models in a file for `--config`."
            )


def _encoder_of(folder: pathlib.Path) -> EncoderDescription | None:
    """Returns the description of a classifier or an encoder; `None` of other models."""
    try:
        return EncoderDescription.read(folder)
    except ValueError:  # Loading the version raises the error.
        return None


def _versions(folder: pathlib.Path, engine: str) -> dict[int, VersionFolder]:
    """Returns all versions by number: those of a run, of a folder, or the folder."""
    for part, kind in (("ctranslate2", "ctranslate2"), ("saved_model", "saved_model")):
        if engine in ("auto", kind) and (folder / part).is_dir():
            inner = _versions(folder / part, kind)
            if inner:
                return inner
    kind_of_folder = engine_of(folder)
    if kind_of_folder is not None:
        number = int(folder.name) if is_version(folder.name) else 1
        candidates = {number: folder}
    else:
        candidates = {
            int(inner.name): inner
            for inner in folder.iterdir()
            if is_version(inner.name)
        }
    kinds = {number: engine_of(inner) for number, inner in candidates.items()}
    return {
        number: VersionFolder(candidates[number], found)
        for number, found in sorted(kinds.items())
        if found is not None and engine in ("auto", found)
    }


def engine_of(folder: pathlib.Path) -> str | None:
    """Returns the name of the engine of a complete model; `None` if it is not one.

    A copy in progress lacks a file. A SavedModel may have no description: see
    `ServedSavedModel`.
    """
    try:
        if _has(folder, "model.bin", FILE):
            return "ctranslate2"
        if _has(folder, "saved_model.pb", "variables/variables.index"):
            return "saved_model"
    except PermissionError:
        pass
    return None


def _has(folder: pathlib.Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)
