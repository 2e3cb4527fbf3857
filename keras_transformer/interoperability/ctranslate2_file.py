"""Reads `model.bin` of CTranslate2: named variables, as data."""

import math
import pathlib
import struct
from typing import Any

import numpy as np

VERSION = 6  # what CTranslate2 4 writes
OLDEST_VERSION = 2
# By the number that stands for each, as in CTranslate2's types.h; before version 4 by
# the bytes of an element.
DTYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
DTYPES_BY_BYTES = {1: "int8", 2: "int16", 4: "float32"}
INT16_SCALE = 1000.0  # of models that store none
LARGEST_RANK = 8
SIDES = ("encoder", "decoder")  # what the names of variables begin with


class Variables:
    """The variables of a model, float32 where they are weights.

    Args:
        name: name of the specification, such as `"TransformerSpec"`.
        version: version of the format.
        arrays: arrays by name, as they are stored.
        aliases: names of variables by other names they go by.
    """

    def __init__(
        self,
        name: str,
        version: int,
        arrays: dict[str, np.ndarray],
        aliases: dict[str, str],
    ):
        self.name = name
        self.version = version
        self._arrays = arrays
        self._aliases = aliases
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.stored_name(name) in self._arrays

    def stored_name(self, name: str) -> str:
        """The name under which a variable is stored, by one of its names."""
        return self._aliases.get(name, name)

    def add(self, name: str, value: int) -> None:
        """Adds a setting, if it is not there."""
        self._arrays.setdefault(name, np.array(value))

    def add_alias(self, name: str, stored: str) -> None:
        """Gives a variable, if it is there, another name that is not taken."""
        if name not in self and stored in self:
            self._aliases[name] = self.stored_name(stored)

    def count(self, prefix: str) -> int:
        """The number of layers, whose names are `prefix` and a number."""
        names = (*self._arrays, *self._aliases)
        rest = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        numbers = {name.partition("/")[0] for name in rest}
        return len({number for number in numbers if number.isdecimal()})

    def scalar(self, name: str, default: Any = None) -> Any:
        """A setting, as a Python number.

        Raises:
            ValueError: if it is not there and has no default, or is no scalar.
        """
        if name not in self and default is not None:
            return default
        array = self._array(name)
        if array.size != 1:
            raise ValueError(f"{name!r} must be a number; it has shape {array.shape}.")
        return array.reshape(()).item()

    def text(self, name: str, default: str) -> str:
        """A setting that is a text: its characters, one by one."""
        if name not in self:
            return default
        return self._array(name).astype("uint8").tobytes().decode("utf-8", "replace")

    def kind(self, name: str) -> str:
        """NumPy's letter for the kind of number; `"i"` if there is no such setting."""
        return self._array(name).dtype.kind if name in self else "i"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a variable.

        Raises:
            ValueError: if it is not there.
        """
        return self._array(name).shape

    def weight(self, name: str) -> np.ndarray:
        """A weight, float32; what is stored in 8 or 16 bits is divided by its scale.

        Raises:
            ValueError: if it is not there, or is quantised in a way unknown here.
        """
        array = self._array(name)
        weight = array.astype("float32")
        scale = self.stored_name(name) + "_scale"
        if array.dtype.kind != "i":
            return weight
        if array.dtype == "int16" and scale not in self:
            return weight / np.float32(INT16_SCALE)
        scales = self._array(scale)
        if scales.shape not in ((), weight.shape[:1]):
            raise ValueError(
                f"{scale!r} must have one scale, or one for each row of shape "
                f"{weight.shape}; it has shape {scales.shape}."
            )
        columns = scales.reshape(scales.shape + (1,) * (weight.ndim - scales.ndim))
        return weight / columns.astype("float32")

    def unused(self) -> list[str]:
        """The variables that have not been read."""
        return sorted(self._arrays.keys() - self._used)

    def _array(self, name: str) -> np.ndarray:
        stored = self.stored_name(name)
        if stored not in self._arrays:
            raise ValueError(f"model.bin must hold the variable {name!r}; it does not.")
        self._used.add(stored)
        return self._arrays[stored]


def read_variables(path: pathlib.Path) -> Variables:
    """Reads the file.

    Args:
        path: the file `model.bin`.

    Returns:
        Its `Variables`.

    Raises:
        ValueError: if it is damaged, or of another version of the format.
    """
    import ml_dtypes  # noqa: F401 (NumPy then knows bfloat16)

    reader = _Reader(path)
    version = reader.number("I")
    if not OLDEST_VERSION <= version <= VERSION:
        raise ValueError(
            f"{path} must be of version {OLDEST_VERSION} to {VERSION} of CTranslate2's "
            f"format; it is of version {version}. Convert the model again with "
            "CTranslate2 4."
        )
    name = reader.string()
    reader.number("I")  # revision
    arrays = dict(reader.variable(version) for _ in range(reader.number("I")))
    aliases = {}
    for _ in range(reader.number("I") if version >= 3 else 0):
        alias = reader.string()
        aliases[alias] = reader.string()
    return Variables(name, version, arrays, aliases)


class _Reader:
    """Goes through the bytes of a file, never beyond its end."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._bytes = path.read_bytes()
        self._position = 0

    def number(self, kind: str) -> int:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0]

    def string(self) -> str:
        try:
            return self._take(self.number("H"))[:-1].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged("a name is not UTF-8") from error

    def variable(self, version: int) -> tuple[str, np.ndarray]:
        name = self.string()
        rank = self.number("B")
        if rank > LARGEST_RANK:
            raise self._damaged(f"{name!r} has {rank} axes")
        shape = tuple(self.number("I") for _ in range(rank))
        if 0 in shape:
            raise self._damaged(f"{name!r} of shape {shape} has no elements")
        kind, size = self.number("B"), self.number("I")
        dtypes = DTYPES_BY_BYTES if version < 4 else dict(enumerate(DTYPES))
        if kind not in dtypes:
            raise self._damaged(f"{name!r} has the unknown type {kind}")
        dtype = np.dtype(dtypes[kind])
        if version < 4:
            size *= dtype.itemsize
        if math.prod(shape) * dtype.itemsize != size:
            raise self._damaged(f"{name!r} of shape {shape} has {size} bytes")
        return name, np.frombuffer(self._take(size), dtype).reshape(shape)

    def _take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        if self._position > len(self._bytes):
            raise self._damaged("it ends too early")
        return self._bytes[start : self._position]

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(
            f"{self._path} must be a model of CTranslate2; it is not, or is damaged "
            f"({reason})."
        )
