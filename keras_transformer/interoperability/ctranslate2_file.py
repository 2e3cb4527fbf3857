"""Reads `model.bin` of CTranslate2: named variables, as data."""

import math
import pathlib
import struct
from typing import Any

import numpy as np

VERSION = 6
# By the number that stands for each, as in CTranslate2's types.h.
DTYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
LARGEST_RANK = 8


class Variables:
    """The variables of a model, float32 where they are weights.

    Args:
        name: name of the specification, such as `"TransformerSpec"`.
        arrays: arrays by name, as they are stored.
        aliases: names of variables by other names they go by.
    """

    def __init__(
        self, name: str, arrays: dict[str, np.ndarray], aliases: dict[str, str]
    ):
        self.name = name
        self._arrays = arrays
        self._aliases = aliases
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.stored_name(name) in self._arrays

    def stored_name(self, name: str) -> str:
        """The name under which a variable is stored; two with one are the same."""
        return self._aliases.get(name, name)

    def count(self, prefix: str) -> int:
        """How many layers there are, counted from 0: `prefix` and a number."""
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

    def kind(self, name: str) -> str:
        """NumPy's letter for the kind of number; that of ints where there is none."""
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
        scales = self._array(scale)
        if scales.shape not in ((), weight.shape[:1]):
            raise ValueError(
                f"{scale!r} must have one scale, or one for each row of shape "
                f"{weight.shape}; it has shape {scales.shape}."
            )
        columns = scales.reshape(scales.shape + (1,) * (weight.ndim - scales.ndim))
        return weight / columns.astype("float32")

    def unused(self) -> list[str]:
        """The variables that no one has asked for."""
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
    if version != VERSION:
        raise ValueError(
            f"{path} must be of version {VERSION} of CTranslate2's format; it is of "
            f"version {version}. Convert the model again with CTranslate2 4.8."
        )
    name = reader.string()
    reader.number("I")  # revision
    arrays = dict(reader.variable() for _ in range(reader.number("I")))
    aliases = {}
    for _ in range(reader.number("I")):
        alias = reader.string()
        aliases[alias] = reader.string()
    return Variables(name, arrays, aliases)


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

    def variable(self) -> tuple[str, np.ndarray]:
        name = self.string()
        rank = self.number("B")
        if rank > LARGEST_RANK:
            raise self._damaged(f"{name!r} has {rank} axes")
        shape = tuple(self.number("I") for _ in range(rank))
        if 0 in shape:
            raise self._damaged(f"{name!r} of shape {shape} has no elements")
        kind, size = self.number("B"), self.number("I")
        if kind >= len(DTYPES):
            raise self._damaged(f"{name!r} has the unknown type {kind}")
        dtype = np.dtype(DTYPES[kind])
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
