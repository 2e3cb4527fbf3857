"""The versions of a model: its folders named 1, 2, …, as TF Serving has them."""

import pathlib

from keras_transformer.serving.options import ModelOptions


def wanted_versions(options: ModelOptions) -> list[int]:
    """Finds the versions that should be served now.

    Args:
        options: the model's.

    Returns:
        Ascending numbers of folders that hold a whole SavedModel: those in
        `options.versions`, all, or the latest one.
    """
    found = sorted(
        int(folder.name)
        for folder in options.folder.iterdir()
        if folder.name.isascii()
        and folder.name.isdigit()
        and str(int(folder.name)) == folder.name
        and is_whole(folder)
    )
    if options.versions == "all":
        return found
    if options.versions == "latest":
        return found[-1:]
    return [version for version in found if version in options.versions]


def is_whole(folder: pathlib.Path) -> bool:
    """Whether a folder holds a SavedModel with its weights.

    A copy in progress has no `variables.index` yet, or no `saved_model.pb`. What may
    not be read is none either.

    Args:
        folder: of one version.

    Returns:
        bool.
    """
    try:
        return all(
            (folder / name).is_file()
            for name in ("saved_model.pb", "variables/variables.index")
        )
    except PermissionError:
        return False
