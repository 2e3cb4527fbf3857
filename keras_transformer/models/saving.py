"""Files in memory and without names, for `keras.Model.save` and `save_weights`."""

import io
import os
from typing import Any, BinaryIO


class FileInMemory(io.BytesIO):
    """A file in memory that has a path for Keras, which checks its ending.

    HDF5 ends the process if it cannot write to a disk.
    """

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def __fspath__(self) -> str:
        return os.path.abspath(self._path)

    def __str__(self) -> str:
        return self._path


class NamelessFile(io.RawIOBase):
    """An open `.keras` file without a name.

    If Keras knows the name and memory is scarce, it lets HDF5 write a file next to it.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file

    def __str__(self) -> str:
        return "model.keras"

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        if not self._file.closed:  # Python also flushes it when it is deleted.
            self._file.flush()
