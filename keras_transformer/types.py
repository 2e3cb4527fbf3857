"""Types of the values that layers, models and searches exchange.

A tensor belongs to the backend in use, so no class of its own describes it: `Tensor`
names the attributes and operators that the tensors of TensorFlow, JAX, PyTorch and
NumPy share. The other names say what a tensor holds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias


class Tensor(Protocol):
    """A tensor of the backend, a NumPy array or a symbolic `KerasTensor`."""

    @property
    def shape(self) -> Any:
        """Sizes of the axes; `None` where a size is unknown."""

    @property
    def dtype(self) -> Any:
        """Dtype of the backend, or its name."""

    def __getitem__(self, key: Any, /) -> "Tensor": ...
    def __add__(self, other: Any, /) -> "Tensor": ...
    def __radd__(self, other: Any, /) -> "Tensor": ...
    def __sub__(self, other: Any, /) -> "Tensor": ...
    def __rsub__(self, other: Any, /) -> "Tensor": ...
    def __mul__(self, other: Any, /) -> "Tensor": ...
    def __rmul__(self, other: Any, /) -> "Tensor": ...
    def __truediv__(self, other: Any, /) -> "Tensor": ...
    def __rtruediv__(self, other: Any, /) -> "Tensor": ...
    def __pow__(self, other: Any, /) -> "Tensor": ...
    def __neg__(self) -> "Tensor": ...
    def __lt__(self, other: Any, /) -> "Tensor": ...
    def __le__(self, other: Any, /) -> "Tensor": ...
    def __gt__(self, other: Any, /) -> "Tensor": ...
    def __ge__(self, other: Any, /) -> "Tensor": ...


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
# Further arguments of a layer, by their names.
Options: TypeAlias = Mapping[str, Any]
