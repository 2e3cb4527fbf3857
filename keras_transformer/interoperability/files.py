"""Reads the files of a checkpoint as data: JSON, tensors, vocabularies."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer import hub
from keras_transformer.export.vocabulary import UNUSED
from keras_transformer.files import checked_file, read_json

FLOATS = ("BF16", "F16", "F32", "F64")


def find_folder(
    folder: str | os.PathLike, files: Sequence[str], revision: str | None = None
) -> pathlib.Path:
    """Finds a folder on this machine, or downloads it from the Hugging Face Hub.

    Args:
        folder: a folder, or the name of a repository, `"owner/name"`.
        files: names of the files that are wanted.
        revision: the repository's branch, tag or commit; its main branch if `None`.

    Returns:
        The path of the folder.

    Raises:
        FileNotFoundError: if it is neither.
        ModuleNotFoundError: if there is no such folder, and the package
            `huggingface_hub` is missing.
    """
    path = pathlib.Path(folder)
    if path.is_dir():
        return path
    if isinstance(folder, str) and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", folder):
        needed_for = (
            f"`folder={folder!r}` is no folder on this machine. As the name of a "
            "repository on the Hugging Face Hub it"
        )
        return hub.download(folder, files, needed_for, revision)
    raise FileNotFoundError(
        "`folder` must be a folder, or a name on the Hugging Face Hub such as "
        f"'Helsinki-NLP/opus-mt-en-de'; received `folder={str(folder)!r}`."
    )


def read_vocabulary(folder: pathlib.Path, name: str, size: int) -> list[str]:
    """Reads a JSON file of tokens and their ids.

    Args:
        folder: the folder.
        name: name of the file.
        size: rows of the embedding; every id is below it.

    Returns:
        The tokens in the order of their ids, with a name for each id that has none.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if an id is not an int of the range, or there twice.
    """
    tokens: dict[int, str] = {}
    for token, token_id in read_json(checked_file(folder / name)).items():
        if type(token_id) is not int or not 0 <= token_id < size or token_id in tokens:
            raise ValueError(
                f"{folder / name} must give each token an id of its own from 0 to "
                f"{size - 1}; it gives {token!r} the id {token_id!r}."
            )
        tokens[token_id] = token
    count = max(tokens, default=-1) + 1
    return [tokens.get(i, UNUSED.format(i)) for i in range(count)]


class Tensors:
    """The tensors of a safetensors file, read one by one.

    Args:
        file: what `safetensors.safe_open` gives.
        path: path of the file, for error messages.
    """

    def __init__(self, file: Any, path: pathlib.Path):
        self._file = file
        self._path = path
        self.names = set(file.keys())

    def read(self, names: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
        """Reads the first of `names` that is there, as float32; see `find`."""
        name = self.find(names, shape)
        return np.asarray(self._file.get_tensor(name)).astype("float32")

    def find(self, names: Sequence[str], shape: tuple[int, ...]) -> str:
        """Finds the first of `names` that is there, with this shape.

        Raises:
            ValueError: if none is there, or it has another shape or no floats.
        """
        name = next((name for name in names if name in self.names), None)
        if name is None:
            raise ValueError(
                f"{self._path} must hold the tensor {names[0]!r} of shape {shape}, as "
                "its config.json says; it does not."
            )
        found = self._file.get_slice(name)
        dtype, own = found.get_dtype(), tuple(found.get_shape())
        if own != shape or dtype not in FLOATS:
            raise ValueError(
                f"{self._path} must hold the tensor {name!r} as floats of shape "
                f"{shape}, as its config.json says; it has shape {own} and type "
                f"{dtype}."
            )
        return name


@contextlib.contextmanager
def open_tensors(path: pathlib.Path) -> Iterator[Tensors]:
    """Opens a safetensors file.

    Args:
        path: the file.

    Yields:
        Its `Tensors`.

    Raises:
        ValueError: if it is damaged.
    """
    import ml_dtypes  # noqa: F401 (NumPy then knows bfloat16)
    import safetensors

    try:
        file = safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} must be a safetensors file; it is not, or is damaged ({error})."
        ) from error
    with file:
        yield Tensors(file, path)
