"""Finds the folder of a checkpoint, reads its settings and its vocabularies."""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from keras_transformer.export.model_support import UNUSED_TOKEN
from keras_transformer.types import Config
from keras_transformer_runtime import hub
from keras_transformer_runtime.files import checked_file, read_json


def find_folder(
    folder: str | os.PathLike,
    files: Sequence[str],
    revision: str | None = None,
    fallbacks: Mapping[str, Sequence[str]] | None = None,
) -> pathlib.Path:
    """Returns a local folder, or downloads files from the Hugging Face Hub.

    `fallbacks` are further files; see `hub.download`.
    """
    path = pathlib.Path(folder)
    if path.is_dir():
        return path
    hub.check_repository(folder)
    needed_for = (
        f"`folder={folder!r}` is not a folder on this machine. As the name of a "
        "repository on the Hugging Face Hub it"
    )
    return hub.download(str(folder), files, needed_for, revision, fallbacks)


def in_config(config: Config, *names: str) -> Config:
    """Returns settings by the names that they have in the errors of checks."""
    return {f"{name} in config.json": config[name] for name in names}


@contextlib.contextmanager
def file_named(path: pathlib.Path, kind: str) -> Iterator[None]:
    """Converts the errors of a damaged file, which can be almost any, to `ValueError`.

    `kind` is what the file must be. Errors of the operating system stay as they are.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be {kind}; it is another file or damaged ({error!s:.300})."
        ) from error


def read_vocabulary(folder: pathlib.Path, name: str, size: int) -> list[str]:
    """Reads a JSON file of tokens and their ids, which must be below `size`.

    Returns the tokens in the order of their ids, and `"<unused id>"` for an id without
    one.
    """
    tokens: dict[int, str] = {}
    for token, token_id in read_json(checked_file(folder / name)).items():
        if type(token_id) is not int or not 0 <= token_id < size or token_id in tokens:
            raise ValueError(
                f"{folder / name} must give each token its own id from 0 to "
                f"{size - 1}; it gives {token!r} the id {token_id!r}."
            )
        tokens[token_id] = token
    count = max(tokens, default=-1) + 1
    return [tokens.get(i, UNUSED_TOKEN.format(i)) for i in range(count)]


def with_padding(tokens: Sequence[str], pad_token_id: int) -> list[str]:
    """Adds `<pad>` to a vocabulary, and `"<unused id>"` for other new ids.

    A token of the name `<pad>` is renamed.
    """
    renamed = ["<own pad>" if token == "<pad>" else token for token in tokens]
    unused = map(UNUSED_TOKEN.format, range(len(tokens), pad_token_id))
    return [*renamed, *unused, "<pad>"]
