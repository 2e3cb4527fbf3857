"""Downloads from the Hugging Face Hub."""

import pathlib
import re
from collections.abc import Mapping, Sequence

from keras_transformer_runtime.packages import require_extra


def check_repository(folder: object) -> None:
    """Checks that the argument `folder` can be the name of a repository.

    Args:
        folder: a path that is not a folder, or a name, `"owner/name"`.

    Raises:
        FileNotFoundError: if it is not a valid name.
    """
    pattern = r"[\w-][\w.-]*/[\w-][\w.-]*"
    if not (isinstance(folder, str) and re.fullmatch(pattern, folder)):
        raise FileNotFoundError(
            "`folder` must be a folder, or a name on the Hugging Face Hub such as "
            f"'Helsinki-NLP/opus-mt-en-de'; received `folder={str(folder)!r}`."
        )


def download(
    name: str,
    files: Sequence[str],
    needed_for: str,
    revision: str | None = None,
    fallbacks: Mapping[str, Sequence[str]] | None = None,
) -> pathlib.Path:
    """Downloads files of a repository, unless the cache holds them.

    Args:
        name: name of the repository, `"owner/name"`.
        files: names of the files, or patterns such as `"*.json"`.
        needed_for: the feature that requires the download, as the subject of the error
            message if the package is missing.
        revision: branch, tag or commit; `None` = the main branch.
        fallbacks: further files, each with the names of the files that make it
            unnecessary. It is downloaded if the repository has none of them.

    Returns:
        Path of the folder with the files.

    Raises:
        ModuleNotFoundError: if the package `huggingface_hub` is missing.
    """
    require_extra("hub", needed_for)
    import huggingface_hub

    def fetch(names: Sequence[str]) -> pathlib.Path:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(names)
        )
        return pathlib.Path(folder)

    folder = fetch(files)
    missing = [
        file
        for file, better in (fallbacks or {}).items()
        if not any((folder / other).exists() for other in better)
    ]
    return fetch([*files, *missing]) if missing else folder
