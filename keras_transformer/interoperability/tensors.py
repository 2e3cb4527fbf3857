"""Tensors of a checkpoint by name, for any format of the file, and what they hold."""

import pathlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.backend.pytorch_file import read_pytorch_file
from keras_transformer.layers import PositionalEncoding
from keras_transformer_runtime.files import checked_file, read_json
from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from safetensors import safe_open

WEIGHTS_FILE = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"
# A checkpoint of several files has a dictionary of the file of each tensor.
INDEX = "{}.index.json"
SHARDS = "{}-*-of-*{}"
FLOATS = ("BF16", "F16", "F32", "F64", "bfloat16", "float16", "float32", "float64")
# Logit of tokens that the stored model does not have. Their probability is 0 in
# float32. A much smaller logit would dominate a loss with label smoothing, which
# includes the logits of all tokens.
LOGIT_OF_ADDED_TOKENS = -100.0
# Greater than the rounding error of sinusoids in half precision.
TABLE_TOLERANCE = 5e-3


class TensorInfo(NamedTuple):
    """Shape and name of the dtype of a tensor, which is not read."""

    shape: tuple[int, ...]
    dtype: str


class Tensors(ABC):
    """The tensors of a file, whose path is for error messages."""

    def __init__(self, path: pathlib.Path, names: set[str]):
        self.path = path
        self.names = names

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Returns shape and dtype of a tensor."""

    @abstractmethod
    def array(self, name: str) -> np.ndarray:
        """Returns a tensor in its own dtype."""

    def read(self, names: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
        """Reads the first tensor of `names` that exists, as float32; see `find`."""
        found = np.asarray(self.array(self.find(names, shape)))
        return found.astype("float32", copy=False)

    def find(self, names: Sequence[str], shape: tuple[int, ...]) -> str:
        """Returns the first of `names` that exists.

        Raises `ValueError` if there is none, or it has another shape or no floats.
        """
        name = next((name for name in names if name in self.names), None)
        if name is None:
            raise ValueError(
                f"{self.path} must hold the tensor {names[0]!r} of shape {shape}, "
                "according to its config.json; it does not."
            )
        found = self.info(name)
        if found.shape != shape or found.dtype not in FLOATS:
            raise ValueError(
                f"{self.path} must hold the tensor {name!r} as floats of shape "
                f"{shape}, according to its config.json; it has shape {found.shape} "
                f"and type {found.dtype}."
            )
        return name


class ArrayTensors(Tensors):
    """Tensors that have been read."""

    def __init__(self, path: pathlib.Path, arrays: Mapping[str, np.ndarray]):
        super().__init__(path, set(arrays))
        self._arrays = arrays

    def info(self, name: str) -> TensorInfo:
        array = self._arrays[name]
        return TensorInfo(array.shape, str(array.dtype))

    def array(self, name: str) -> np.ndarray:
        return self._arrays[name]


class PyTorchTensors(Tensors):
    """The tensors of a file of PyTorch, each converted to float32 when it is read."""

    def __init__(self, path: pathlib.Path):
        self._tensors = read_pytorch_file(path)
        super().__init__(path, set(self._tensors))

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensors[name]
        return TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def array(self, name: str) -> np.ndarray:
        # NumPy has no bfloat16.
        return self._tensors[name].float().numpy(force=True)


class SafeTensors(Tensors):
    """The tensors of a safetensors file.

    The file is mapped into memory while a tensor is read, and not in between, so that
    memory contains one tensor at a time. Raises `ValueError` if the file is damaged.
    """

    def __init__(self, path: pathlib.Path):
        require_extra("hub", f"{path}")
        with _open_safetensors(path) as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            self._info = {
                name: TensorInfo(tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
        super().__init__(path, set(self._info))

    def info(self, name: str) -> TensorInfo:
        return self._info[name]

    def array(self, name: str) -> np.ndarray:
        with _open_safetensors(self.path) as file:
            return file.get_tensor(name)


def _open_safetensors(path: pathlib.Path) -> "safe_open":
    import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
    import safetensors

    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} must be a safetensors file; it is another file or damaged "
            f"({error})."
        ) from error


class ShardedTensors(Tensors):
    """The tensors of several files."""

    def __init__(self, path: pathlib.Path, shards: Sequence[Tensors]):
        self._shard_of = {name: shard for shard in shards for name in shard.names}
        super().__init__(path, set(self._shard_of))

    def info(self, name: str) -> TensorInfo:
        return self._shard_of[name].info(name)

    def array(self, name: str) -> np.ndarray:
        return self._shard_of[name].array(name)


def checkpoint_files(name: str) -> tuple[str, ...]:
    """Returns the names and patterns of files of weights, in one file or several."""
    path = pathlib.Path(name)
    return (name, INDEX.format(name), SHARDS.format(path.stem, path.suffix))


def open_checkpoint(folder: pathlib.Path) -> Tensors:
    """Opens the weights of a folder: safetensors if there are any, one file or several.

    Raises `FileNotFoundError` if there are none, and `ValueError` for a damaged file.
    """
    kinds = {WEIGHTS_FILE: SafeTensors, PICKLED_WEIGHTS: PyTorchTensors}
    for name, kind in kinds.items():
        index = folder / INDEX.format(name)
        if (folder / name).is_file():
            return kind(folder / name)
        if index.is_file():
            return ShardedTensors(index, [*map(kind, _files_of_index(index))])
    raise FileNotFoundError(
        f"`folder` must have the file {WEIGHTS_FILE} or {PICKLED_WEIGHTS}; there is "
        f"none in {folder}."
    )


def _files_of_index(index: pathlib.Path) -> list[pathlib.Path]:
    file_of = read_json(index).get("weight_map")
    names = list(file_of.values()) if isinstance(file_of, dict) else []
    is_name = [isinstance(n, str) and pathlib.Path(n).name == n for n in names]
    if not names or not all(is_name):
        raise ValueError(
            f"{index} must have a dictionary `weight_map` of tensors and the names of "
            "files beside it; it does not."
        )
    return [checked_file(index.parent / name) for name in sorted(set(names))]


def padded_rows(weight: np.ndarray, count: int) -> np.ndarray:
    """Returns a matrix with rows of zeros for the tokens that it does not have."""
    return np.pad(weight, ((0, count - len(weight)), (0, 0)))


def are_sinusoids(table: np.ndarray, interleaved: bool) -> bool:
    """Returns whether `PositionalEncoding` computes a table `(length, hidden_dim)`."""
    layer = PositionalEncoding(interleaved=interleaved, dtype="float32")
    computed = layer(np.zeros((1, *table.shape), "float32"))[0]
    return np.allclose(ops.convert_to_numpy(computed), table, atol=TABLE_TOLERANCE)
