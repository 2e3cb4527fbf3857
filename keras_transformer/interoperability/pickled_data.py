"""Reads a pickle of PyTorch as data. No class or function of the file is called."""

import pickletools
from typing import Any, BinaryIO, NamedTuple

# Opcodes that push their argument.
CONSTANTS = {
    "BINFLOAT",
    "BININT",
    "BININT1",
    "BININT2",
    "BINUNICODE",
    "BINUNICODE8",
    "FLOAT",
    "INT",
    "LONG",
    "LONG1",
    "LONG4",
    "SHORT_BINUNICODE",
    "UNICODE",
}
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
STORE = {"PUT", "BINPUT", "LONG_BINPUT"}
FETCH = {"GET", "BINGET", "LONG_BINGET"}

ORDERED_DICT = ("collections", "OrderedDict")
PARAMETER = ("torch._utils", "_rebuild_parameter")
TENSOR = {
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
}
# Storage classes of PyTorch and the dtypes of their elements.
DTYPES = {
    "BFloat16Storage": "bfloat16",
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "ShortStorage": "int16",
}
ALLOWED = {
    ORDERED_DICT,
    PARAMETER,
    *TENSOR,
    *(("torch", name) for name in DTYPES),
}
MAX_RANK = 8


class GlobalName(NamedTuple):
    """A class or function that a pickle names. It is never imported."""

    module: str
    name: str


class Storage(NamedTuple):
    """A block of numbers in the file.

    Attributes:
        key: name of the block in the file.
        dtype: name of the dtype of its elements.
        size: number of elements.
    """

    key: str
    dtype: str
    size: int


class StoredTensor(NamedTuple):
    """A tensor as a view of a storage.

    Attributes:
        storage: the storage.
        offset: index of the first element.
        shape: shape of the tensor.
        strides: distances between neighbours along each axis, in elements.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickle(file: BinaryIO) -> Any:
    """Reads the next pickle of a file.

    Only the opcodes, classes and functions that `torch.save` writes for dictionaries
    of tensors are known. They are replaced by dictionaries and `StoredTensor`s.

    Args:
        file: a file, open at the first byte of the pickle. It is left open after the
            last byte.

    Returns:
        Numbers, strings, lists, tuples, dictionaries and `StoredTensor`s.

    Raises:
        ValueError: if the pickle is damaged, or has another opcode, class or function.
    """
    reader = _Reader()
    try:
        for opcode, argument, _ in pickletools.genops(file):
            reader.run(opcode.name, argument)
        return reader.stack.pop()
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"its pickle is damaged: {error!r:.80}") from error


class _Reader:
    """The stack and the memory of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}

    def run(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        if opcode in CONSTANTS:
            stack.append(argument)
        elif opcode in VALUES:
            stack.append(VALUES[opcode])
        elif opcode in TUPLES:
            stack.append(tuple(self._pop(TUPLES[opcode])))
        elif opcode == "TUPLE":
            stack.append(tuple(self._pop_to_mark()))
        elif opcode == "EMPTY_DICT":
            stack.append({})
        elif opcode == "EMPTY_LIST":
            stack.append([])
        elif opcode == "MARK":
            self._marks.append(len(stack))
        elif opcode in ("APPEND", "APPENDS"):
            items = self._pop_to_mark() if opcode == "APPENDS" else self._pop(1)
            _checked(stack[-1], list).extend(items)
        elif opcode in ("SETITEM", "SETITEMS"):
            items = self._pop_to_mark() if opcode == "SETITEMS" else self._pop(2)
            _set_items(_checked(stack[-1], dict), items)
        elif opcode in STORE:
            self._memory[argument] = stack[-1]
        elif opcode == "MEMOIZE":
            self._memory[len(self._memory)] = stack[-1]
        elif opcode in FETCH:
            stack.append(self._memory[argument])
        elif opcode in ("GLOBAL", "STACK_GLOBAL"):
            names = argument.split(" ") if opcode == "GLOBAL" else self._pop(2)
            stack.append(_allowed(*names))
        elif opcode == "REDUCE":
            stack.append(_result(*self._pop(2)))
        elif opcode == "BUILD":
            # Attributes of the dictionary, such as the versions of layers.
            self._pop(1)
            _checked(stack[-1], dict)
        elif opcode == "BINPERSID":
            stack.append(_storage(*_checked(stack.pop(), tuple)))
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it has the opcode {opcode}, which no tensor requires")

    def _pop(self, count: int) -> list[Any]:
        return self._pop_from(len(self.stack) - count)

    def _pop_to_mark(self) -> list[Any]:
        return self._pop_from(self._marks.pop())

    def _pop_from(self, start: int) -> list[Any]:
        if not 0 <= start <= len(self.stack):
            raise IndexError("its stack is too short")
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _allowed(module: Any, name: Any) -> GlobalName:
    # Hashing only strings: the hash of deeply nested tuples overflows the C stack.
    module, name = _checked(module, str), _checked(name, str)
    if (module, name) not in ALLOWED:
        raise ValueError(
            f"it names {f'{module}.{name}'!r:.80}, which is no part of tensors and is "
            "never imported or called"
        )
    return GlobalName(module, name)


def _set_items(items: dict[Any, Any], pairs: list[Any]) -> None:
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        items[_checked(key, str)] = value


def _result(function: Any, arguments: Any) -> Any:
    """Returns what a class or function of PyTorch stands for."""
    name, arguments = _checked(function, GlobalName), _checked(arguments, tuple)
    if name == ORDERED_DICT and not arguments:
        return {}
    if name == PARAMETER:
        return _checked(arguments[0], StoredTensor)
    if name in TENSOR:
        return _tensor(*arguments[:4])
    raise ValueError(f"it calls {name.name}, which is not a function of tensors")


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> StoredTensor:
    tensor = StoredTensor(
        _checked(storage, Storage),
        _size(offset),
        tuple(map(_size, _checked(shape, tuple))),
        tuple(map(_size, _checked(strides, tuple))),
    )
    if len(tensor.shape) > MAX_RANK:
        raise ValueError(f"a tensor has {len(tensor.shape)} axes")
    last, elements = tensor.offset, 1
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        elements *= size
        last += (size - 1) * stride
    # A tensor that repeats elements would be greater than the file.
    count = tensor.storage.size
    if elements > count or (elements and last >= count):
        raise ValueError(
            f"a tensor of shape {tensor.shape!s:.80} exceeds its storage of {count} "
            "elements"
        )
    return tensor


def _storage(
    kind: Any, storage_class: Any, key: Any, _: Any, count: Any, view: Any = None
) -> Storage:
    name = _checked(storage_class, GlobalName).name
    if _checked(kind, str) != "storage" or name not in DTYPES or view is not None:
        raise ValueError("it has a storage of another kind")
    return Storage(_checked(key, str), DTYPES[name], _size(count))


def _size(value: Any) -> int:
    if _checked(value, int) < 0:
        raise ValueError(f"it has the size {value}")
    return value


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {kind.__name__} is a {type(value).__name__}")
    return value
