"""Reads the tensors of `pytorch_model.bin` without PyTorch, as data."""

import contextlib
import io
import math
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from keras_transformer.interoperability.pickled_data import (
    Storage,
    StoredTensor,
    read_pickle,
)
from keras_transformer.interoperability.tensors import TensorInfo, Tensors

ZIP_MAGIC = b"PK\x03\x04"
# The first pickles of the format before PyTorch 1.6.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
# Many times the size of the descriptions of a large model's tensors.
MAX_PICKLE_SIZE = 2**21
# The maximum number of names that a matrix has: those of the shared embedding, of the
# embeddings of both sides, and of the output.
MAX_NAMES = 4


class PyTorchTensors(Tensors):
    """The tensors of a file of `torch.save`, read one at a time.

    Args:
        path: path of the file.
        tensors: the tensors by name.
        read_storage: returns the bytes of a storage.
    """

    def __init__(
        self,
        path: pathlib.Path,
        tensors: dict[str, StoredTensor],
        read_storage: Callable[[Storage], bytes],
    ):
        super().__init__(path, set(tensors))
        self._tensors = tensors
        self._read_storage = read_storage

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensors[name]
        return TensorInfo(tensor.shape, tensor.storage.dtype)

    def array(self, name: str) -> np.ndarray:
        storage, offset, shape, strides = self._tensors[name]
        dtype = np.dtype(storage.dtype)
        with _damage_as_value_error(self.path):
            content = self._read_storage(storage)
        return np.ndarray(
            shape,
            dtype,
            content,
            offset * dtype.itemsize,
            tuple(stride * dtype.itemsize for stride in strides),
        )


@contextlib.contextmanager
def open_pytorch_file(path: pathlib.Path) -> Iterator[PyTorchTensors]:
    """Opens a dictionary of tensors that `torch.save` has written.

    Both formats are read: the zip archive and, from before PyTorch 1.6, the sequence of
    pickles. The pickles are interpreted as data; see `read_pickle`.

    Args:
        path: the file.

    Yields:
        The tensors.

    Raises:
        ValueError: if the file is damaged, or holds anything but tensors.
    """
    import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)

    with contextlib.ExitStack() as stack:
        with _damage_as_value_error(path):
            file = stack.enter_context(open(path, "rb"))
            is_archive = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
            file.seek(0)
            if is_archive:
                archive = stack.enter_context(zipfile.ZipFile(file))
                tensors, read_storage = _open_archive(archive)
            else:
                tensors, read_storage = _open_legacy_file(file)
            _check_total_size(tensors, path)
        yield PyTorchTensors(path, tensors, read_storage)


@contextlib.contextmanager
def _damage_as_value_error(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except (
        EOFError,
        KeyError,
        OverflowError,
        RuntimeError,
        ValueError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} must be a dictionary of tensors, written by `torch.save`; it is "
            f"another file or damaged ({error!s:.200}). It was read as data, and "
            "nothing in it was executed."
        ) from error


def _open_archive(
    archive: zipfile.ZipFile,
) -> tuple[dict[str, StoredTensor], Callable[[Storage], bytes]]:
    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1:
        raise ValueError(f"it has {len(names)} files data.pkl")
    root = names[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist():
        _check_byte_order(_read_member(archive, f"{root}byteorder", 64) == b"little")
    content = _read_member(archive, names[0], MAX_PICKLE_SIZE)
    tensors = _checked_tensors(read_pickle(io.BytesIO(content)))

    def read_storage(storage: Storage) -> bytes:
        return _read_member(archive, f"{root}data/{storage.key}", _bytes(storage))

    for storage in _storages(tensors):
        size = archive.getinfo(f"{root}data/{storage.key}").file_size
        _check_storage_size(storage, size)
    return tensors, read_storage


def _read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Reads a file of the archive; raises `ValueError` if it has more bytes."""
    info = archive.getinfo(name)
    # PyTorch compresses nothing. A small compressed file can have any size.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
        raise ValueError(f"{name!r:.80} is compressed or has more than {limit} bytes")
    return archive.read(name)


def _open_legacy_file(
    file: BinaryIO,
) -> tuple[dict[str, StoredTensor], Callable[[Storage], bytes]]:
    head = io.BytesIO(file.read(MAX_PICKLE_SIZE))
    if (read_pickle(head), read_pickle(head)) != (LEGACY_MAGIC, LEGACY_PROTOCOL):
        raise ValueError("it does not begin as a file of PyTorch")
    system = read_pickle(head)
    _check_byte_order(isinstance(system, dict) and system.get("little_endian") is True)
    tensors = _checked_tensors(read_pickle(head))
    keys = read_pickle(head)
    storages = {storage.key: storage for storage in _storages(tensors)}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("its list of storages is damaged")
    if sorted(keys) != sorted(storages):
        raise ValueError("its list of storages does not match its tensors")
    size, position = file.seek(0, io.SEEK_END), head.tell()
    positions = {}
    for key in keys:
        file.seek(position)
        (count,) = struct.unpack("<q", file.read(8))
        storage = storages[key]
        _check_storage_size(storage, count * np.dtype(storage.dtype).itemsize)
        positions[key] = position + 8
        position = positions[key] + _bytes(storage)
    if position > size:
        raise ValueError("it ends too early")

    def read_storage(storage: Storage) -> bytes:
        file.seek(positions[storage.key])
        return file.read(_bytes(storage))

    return tensors, read_storage


def _checked_tensors(content: Any) -> dict[str, StoredTensor]:
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    for name, tensor in content.items():
        if not isinstance(tensor, StoredTensor):
            raise ValueError(f"{name!r:.80} is a {type(tensor).__name__}")
    return content


def _storages(tensors: dict[str, StoredTensor]) -> list[Storage]:
    """Returns each storage once; raises `ValueError` if one has two descriptions."""
    storages: dict[str, Storage] = {}
    for storage, *_ in tensors.values():
        if storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"the storage {storage.key!r:.80} has two types or sizes")
    return list(storages.values())


def _check_storage_size(storage: Storage, size: int) -> None:
    if size != _bytes(storage):
        raise ValueError(
            f"the storage {storage.key!r:.80} has {size} bytes, not {_bytes(storage)}"
        )


def _check_total_size(tensors: dict[str, StoredTensor], path: pathlib.Path) -> None:
    """Raises `ValueError` if a model with the tensors exceeds the file many times."""
    sizes = [
        math.prod(tensor.shape) * np.dtype(tensor.storage.dtype).itemsize
        for tensor in tensors.values()
    ]
    if sum(sizes) > MAX_NAMES * path.stat().st_size:
        raise ValueError(f"its tensors share memory and have {sum(sizes)} bytes in all")


def _check_byte_order(is_little: bool) -> None:
    if not is_little:
        raise ValueError("its numbers are not little-endian")


def _bytes(storage: Storage) -> int:
    return storage.size * np.dtype(storage.dtype).itemsize
