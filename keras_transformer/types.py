"""Types of the values that layers, models and searches exchange.

A tensor has the class of the backend in use, so `Tensor` is a protocol: it names the
attributes and operators that the tensors of TensorFlow, JAX, PyTorch and NumPy share.
The other names say what a tensor contains.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

# A tensor, a number or an array. The operators of NumPy accept no narrower type.
Operand: TypeAlias = Any


class Tensor(Protocol):
    """A tensor of the backend, a NumPy array or a symbolic `KerasTensor`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes. A symbolic tensor has `None` where a size is unknown."""

    @property
    def dtype(self) -> object:
        """Dtype of the backend, or its name."""

    def __getitem__(self, key: Any, /) -> "Tensor": ...
    def __add__(self, other: Operand, /) -> "Tensor": ...
    def __radd__(self, other: Operand, /) -> "Tensor": ...
    def __sub__(self, other: Operand, /) -> "Tensor": ...
    def __rsub__(self, other: Operand, /) -> "Tensor": ...
    def __mul__(self, other: Operand, /) -> "Tensor": ...
    def __rmul__(self, other: Operand, /) -> "Tensor": ...
    def __truediv__(self, other: Operand, /) -> "Tensor": ...
    def __rtruediv__(self, other: Operand, /) -> "Tensor": ...
    def __floordiv__(self, other: Operand, /) -> "Tensor": ...
    def __mod__(self, other: Operand, /) -> "Tensor": ...
    def __pow__(self, other: Operand, /) -> "Tensor": ...
    def __neg__(self) -> "Tensor": ...
    def __lt__(self, other: Operand, /) -> "Tensor": ...
    def __le__(self, other: Operand, /) -> "Tensor": ...
    def __gt__(self, other: Operand, /) -> "Tensor": ...
    def __ge__(self, other: Operand, /) -> "Tensor": ...


# int32 token ids, usually `(batch, length)`, padded with `pad_token_id`.
TokenIds: TypeAlias = Tensor
# Boolean, `True` = attend to the entry, or a real token.
Mask: TypeAlias = Tensor
# Sizes of axes; `None` where a size is unknown.
Shape: TypeAlias = Sequence[int | None]
# A size that is known when a function is traced, or an int32 scalar tensor.
Size: TypeAlias = int | Tensor
# The configuration of a Keras object, from `get_config`.
Config: TypeAlias = dict[str, Any]
# Losses, metrics and other values by name, as the callbacks of Keras receive them.
Logs: TypeAlias = dict[str, float]
# Further arguments of a layer, by their names.
Options: TypeAlias = Mapping[str, Any]
# The path of a file or a folder.
Path: TypeAlias = str | os.PathLike
# A size of the same kind as an argument.
SizeT = TypeVar("SizeT", int, Tensor, Size)
# What `fit` of Keras takes as inputs, labels or weights: a list, an array, a tensor or
# a `tf.data.Dataset`; or a batch of these inside a graph of TensorFlow.
Data: TypeAlias = Any
