"""Downloads from the Hugging Face Hub."""

import pathlib
from collections.abc import Sequence


def download(
    name: str, files: Sequence[str], needed_for: str, revision: str | None = None
) -> pathlib.Path:
    """Downloads files of a repository, unless the cache holds them.

    Args:
        name: name of the repository, `"owner/name"`.
        files: names of the files, or patterns such as `"*.json"`.
        needed_for: the feature that requires the download, as the subject of the error
            message if the package is missing.
        revision: branch, tag or commit; `None` = the main branch.

    Returns:
        Path of the folder with the files.

    Raises:
        ModuleNotFoundError: if the package `huggingface_hub` is missing.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{needed_for} needs the package huggingface_hub. Install it: "
            'pip install "keras-transformer[hub]"',
            name=error.name,
        ) from error

    folder = huggingface_hub.snapshot_download(
        name, revision=revision, allow_patterns=list(files)
    )
    return pathlib.Path(folder)
