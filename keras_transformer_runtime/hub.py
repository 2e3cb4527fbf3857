"""Downloads from the Hugging Face Hub."""

import pathlib
import re
from collections.abc import Mapping, Sequence

from keras_transformer_runtime.packages import require_extra


def check_repository(folder: object) -> None:
    """Checks that the argument `folder` can be the name of a repository."""
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

    `files` are names or patterns. A file of `fallbacks` is downloaded if the repository
    has none of the files that it is a fallback for. Returns the folder.
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
