"""Finds the versions of a model: folders 1, 2, …, as for TensorFlow Serving."""

import pathlib

from keras_transformer.serving.server_options import ModelOptions


def selected_versions(options: ModelOptions) -> list[int]:
    """Returns the versions to serve.

    Args:
        options: the options of the model.

    Returns:
        The numbers, ascending, of the folders with a complete SavedModel that
        `options.versions` selects.
    """
    found = sorted(
        int(folder.name)
        for folder in options.folder.iterdir()
        if folder.name.isascii()
        and folder.name.isdigit()
        and str(int(folder.name)) == folder.name
        and is_complete(folder)
    )
    if options.versions == "all":
        return found
    if options.versions == "latest":
        return found[-1:]
    return [version for version in found if version in options.versions]


def is_complete(folder: pathlib.Path) -> bool:
    """Tells whether a folder contains a complete SavedModel.

    A copy in progress lacks `variables.index` or `saved_model.pb`.

    Args:
        folder: of one version.

    Returns:
        Whether both files exist; `False` if the folder cannot be read.
    """
    try:
        return all(
            (folder / name).is_file()
            for name in ("saved_model.pb", "variables/variables.index")
        )
    except PermissionError:
        return False
