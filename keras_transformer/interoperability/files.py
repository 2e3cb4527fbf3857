"""Reads the files of a checkpoint as data: folders, vocabularies and tensors."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer import hub
from keras_transformer.export.protocols import UNUSED_TOKEN
from keras_transformer.files import checked_file, read_json

if TYPE_CHECKING:
    from safetensors import safe_open

FLOATS = ("BF16", "F16", "F32", "F64")


def find_folder(
    folder: str | os.PathLike, files: Sequence[str], revision: str | None = None
) -> pathlib.Path:
    """Returns a local folder, or downloads one from the Hugging Face Hub.

    Args:
        folder: a folder, or the name of a repository, `"owner/name"`.
        files: names of the files to download.
        revision: branch, tag or commit of the repository. `None` = its main branch.

    Returns:
        Path of the folder.

    Raises:
        FileNotFoundError: if `folder` is neither a folder nor the name of a
            repository.
        ModuleNotFoundError: if the folder does not exist, and the package
            `huggingface_hub` is missing.
    """
    path = pathlib.Path(folder)
    if path.is_dir():
        return path
    if isinstance(folder, str) and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", folder):
        needed_for = (
            f"`folder={folder!r}` is not a folder on this machine. As the name of a "
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
        size: number of rows of the embedding. All ids must be smaller.

    Returns:
        The tokens in the order of their ids. An id without a token gets the token
        `"<unused id>"`.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if an id is not an int, is out of range, or belongs to two tokens.
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


class Tensors:
    """The tensors of a safetensors file, read one at a time.

    Args:
        file: a file opened by `safetensors.safe_open`.
        path: path of the file, for error messages.
    """

    def __init__(self, file: "safe_open", path: pathlib.Path):
        self._file = file
        self._path = path
        self.names = set(file.keys())

    def read(self, names: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
        """Reads the first tensor of `names` that exists, as float32; see `find`."""
        name = self.find(names, shape)
        return np.asarray(self._file.get_tensor(name)).astype("float32")

    def find(self, names: Sequence[str], shape: tuple[int, ...]) -> str:
        """Returns the first of `names` that exists, after checking its shape.

        Args:
            names: possible names of the tensor.
            shape: expected shape.

        Raises:
            ValueError: if no name exists, or the tensor has another shape or does not
                hold floats.
        """
        name = next((name for name in names if name in self.names), None)
        if name is None:
            raise ValueError(
                f"{self._path} must hold the tensor {names[0]!r} of shape {shape}, "
                "according to its config.json; it does not."
            )
        found = self._file.get_slice(name)
        dtype, found_shape = found.get_dtype(), tuple(found.get_shape())
        if found_shape != shape or dtype not in FLOATS:
            raise ValueError(
                f"{self._path} must hold the tensor {name!r} as floats of shape "
                f"{shape}, according to its config.json; it has shape {found_shape} "
                f"and type {dtype}."
            )
        return name


@contextlib.contextmanager
def open_tensors(path: pathlib.Path) -> Iterator[Tensors]:
    """Opens a safetensors file.

    Args:
        path: the file.

    Yields:
        The `Tensors` of the file.

    Raises:
        ValueError: if the file is damaged.
    """
    import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
    import safetensors

    try:
        file = safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} must be a safetensors file; it is another file or damaged "
            f"({error})."
        ) from error
    with file:
        yield Tensors(file, path)
