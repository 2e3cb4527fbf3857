"""Finds the versions of a model: folders 1, 2, …, as for TensorFlow Serving."""

import pathlib
from collections.abc import Mapping

from keras_transformer.serving.server_options import ModelOptions
from keras_transformer_runtime.model_paths import is_version


def selected_versions(options: ModelOptions) -> list[int]:
    """Returns the versions to serve."""
    found = sorted(
        int(folder.name)
        for folder in options.folder.iterdir()
        if is_version(folder.name) and is_complete(folder)
    )
    if options.versions == "all":
        return found
    if options.versions == "latest":
        return found[-1:]
    return [version for version in found if version in options.versions]


def check_versions(models: Mapping[str, ModelOptions]) -> None:
    """Checks that every model has a version to serve."""
    for name, options in models.items():
        if not options.wait_for_versions and not selected_versions(options):
            raise ValueError(
                f"`folder` of the model {name} must contain a SavedModel in a folder "
                "named 1, 2, …, that `versions` selects; received "
                f"folder={options.folder}, versions={options.versions}. Export a "
                "version, or set `wait_for_versions` to start without one."
            )


def is_complete(folder: pathlib.Path) -> bool:
    """Returns whether a folder contains a complete SavedModel.

    A copy in progress lacks `variables.index` or `saved_model.pb`.
    """
    try:
        return all(
            (folder / name).is_file()
            for name in ("saved_model.pb", "variables/variables.index")
        )
    except PermissionError:
        return False
