"""Reads `model.bin` of CTranslate2: named variables, in all versions of the format."""

import math
import pathlib
import struct

import numpy as np

from keras_transformer.types import Config
from keras_transformer_runtime.files import read_file

VERSION = 6  # of CTranslate2 4
OLDEST_VERSION = 2
ENCODER_DECODER = "TransformerSpec"
DECODER_ONLY = "TransformerDecoderSpec"
# Dtypes by their numbers in CTranslate2's types.h. Before version 4 of the format, the
# file holds the size of an element instead.
DTYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
DTYPES_BY_SIZE = {1: "int8", 2: "int16", 4: "float32"}
INT16_SCALE = 1000.0  # of models that store no scale
MAX_RANK = 8
# First parts of the names of variables, by the name of the specification.
SIDES = {ENCODER_DECODER: ("encoder", "decoder"), DECODER_ONLY: ("decoder",)}
# Number of heads of the first specifications, which do not store it.
NUM_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
# Current names of settings and their names in older versions, which store one setting
# for both sides.
OLDER_NAMES = {
    **{
        f"{side}/{name}": name
        for side in SIDES[ENCODER_DECODER]
        for name in (
            "num_heads",
            "pre_norm",
            "activation",
            "embeddings_merge",
            "alignment_layer",
            "alignment_heads",
        )
    },
    "encoder/embeddings_0/weight": "encoder/embeddings/weight",
}


class Variables:
    """The variables of a CTranslate2 model: weights and settings.

    `aliases` are further names of variables, each with the name of the stored array.
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
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.stored_name(name) in self._arrays

    @property
    def sides(self) -> tuple[str, ...]:
        """The parts of the model, `"encoder"` and `"decoder"`, or one of them."""
        return SIDES[self.name]

    def names(self) -> list[str]:
        """Returns the names of the stored arrays."""
        return sorted(self._arrays)

    def stored_name(self, name: str) -> str:
        """Returns the name of the stored array of a variable."""
        return self._aliases.get(name, name)

    def add(self, name: str, value: int) -> None:
        """Adds a setting unless it is stored."""
        self._arrays.setdefault(name, np.array(value))

    def add_alias(self, name: str, stored: str) -> None:
        """Adds a name of a variable if the variable exists and the name is free."""
        if name not in self and stored in self:
            self._aliases[name] = self.stored_name(stored)

    def count(self, prefix: str) -> int:
        """Returns the number of layers, whose names are `prefix` and a number."""
        names = (*self._arrays, *self._aliases)
        rest = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        numbers = {name.partition("/")[0] for name in rest}
        return len(
            {number for number in numbers if number.isascii() and number.isdigit()}
        )

    def scalar(self, name: str, default: float | None = None) -> float:
        """Returns a setting as a Python number, or `default` if it is not stored.

        Raises `ValueError` without both, or if the setting is not a scalar.
        """
        if name not in self and default is not None:
            return default
        array = self._array(name)
        if array.size != 1:
            raise ValueError(f"{name!r} must be a number; it has shape {array.shape}.")
        number: float = array.reshape(()).item()
        return number

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns a setting that is an int; see `scalar`."""
        number = self.scalar(name, default)
        if not float(number).is_integer():
            raise ValueError(f"{name!r} must be an int; it is {number}.")
        return int(number)

    def text(self, name: str, default: str) -> str:
        """Returns a setting that is a string, stored as an array of bytes."""
        if name not in self:
            return default
        return self._array(name).astype("uint8").tobytes().decode("utf-8", "replace")

    def kind(self, name: str) -> str:
        """Returns NumPy's letter for the kind of a setting; `"i"` if not stored."""
        return self._array(name).dtype.kind if name in self else "i"

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a variable; raises `ValueError` if it is not stored."""
        return self._array(name).shape

    def weight(self, name: str) -> np.ndarray:
        """Returns a weight as float32, divided by its scale if it has one."""
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

    def weight_types(self) -> list[str]:
        """Returns the dtypes of the matrices."""
        matrices = [array for array in self._arrays.values() if array.ndim > 1]
        return sorted({str(array.dtype) for array in matrices})

    def unread(self) -> list[str]:
        """Returns the names of the variables that have not been read."""
        return sorted(self._arrays.keys() - self._read)

    def _array(self, name: str) -> np.ndarray:
        stored = self.stored_name(name)
        if stored not in self._arrays:
            raise ValueError(f"model.bin must hold the variable {name!r}; it does not.")
        self._read.add(stored)
        return self._arrays[stored]


def read_variables(path: pathlib.Path) -> Variables:
    """Reads the variables of a model from its file `model.bin`.

    Variables and specifications of older versions of the format also get their current
    names.
    """
    import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)

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
    variables = Variables(name, version, arrays, aliases)
    _add_current_names(variables)
    return variables


def _add_current_names(variables: Variables) -> None:
    if variables.name in NUM_HEADS:
        variables.add("num_heads", NUM_HEADS[variables.name])
        variables.name = ENCODER_DECODER
    for name, older in OLDER_NAMES.items():
        variables.add_alias(name, older)


def older_config(variables: Variables) -> Config:
    """Returns the settings that current versions store in `config.json`."""
    tokens = {
        name: variables.text(name, default)
        for name, default in {"bos_token": "<s>", "eos_token": "</s>"}.items()
    }
    start = "bos_token" if variables.scalar("with_target_bos", 1) else "eos_token"
    chosen_by_user = variables.scalar("user_decoder_start_tokens", 0)
    return {
        **tokens,
        "decoder_start_token": None if chosen_by_user else tokens[start],
        "add_source_bos": bool(variables.scalar("with_source_bos", 0)),
    }


class _Reader:
    """Reads the bytes of a file in order, never beyond its end."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._bytes = read_file(path)
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
        if rank > MAX_RANK:
            raise self._damaged(f"{name!r} has {rank} axes")
        shape = tuple(self.number("I") for _ in range(rank))
        if 0 in shape:
            raise self._damaged(f"{name!r} of shape {shape} has no elements")
        kind, size = self.number("B"), self.number("I")
        dtypes = DTYPES_BY_SIZE if version < 4 else dict(enumerate(DTYPES))
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
            f"{self._path} must be a model of CTranslate2; it is another file or "
            f"damaged ({reason})."
        )
