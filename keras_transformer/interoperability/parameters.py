"""The tensors of a checkpoint, and the variables of a model that have their values."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

# Names of layers: one of theirs, and the path of ours from the model, or the paths of
# several whose kernels are the columns of one tensor. A `{}` is the number of a block.
LayerNames = Mapping[str, str | tuple[str, ...]]


class Parameter(NamedTuple):
    """A tensor of a checkpoint and the variables of a model that have its values.

    Attributes:
        name: name of the tensor.
        variables: its parts along the last axis, after the transposition.
        shape: shape of the variables together, in the order of the tensor.
        is_transposed: whether the tensor is `(outputs, inputs)`, and the variable is a
            kernel.
        rows: number of rows of the tensor; `None` = those of the variables. Further
            rows of the variables are of tokens that the stored model does not have.
        first_row: number of rows in front of these that the model does not have.
        scale: the variable is the tensor times this factor.
    """

    name: str
    variables: tuple[keras.Variable, ...]
    shape: tuple[int, ...]
    is_transposed: bool = False
    rows: int | None = None
    first_row: int = 0
    scale: float = 1.0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the tensor in the file."""
        rows, *others = self.shape
        return (self.first_row + (self.rows or rows), *others)

    @property
    def itemsize(self) -> int:
        """The number of bytes of a value."""
        dtype = keras.backend.standardize_dtype(self.variables[0].dtype)
        return int(dtype[-2:]) // 8  # such as float32

    def assign(self, tensor: np.ndarray) -> None:
        """Sets the variables; rows that the tensor does not have become 0."""
        tensor = tensor[self.first_row :]
        missing = self.shape[0] - len(tensor)
        if missing:
            tensor = np.pad(tensor, [(0, missing)] + [(0, 0)] * (tensor.ndim - 1))
        if self.scale != 1.0:
            tensor = tensor * np.asarray(self.scale, tensor.dtype)
        tensor = tensor.T if self.is_transposed else tensor
        if len(self.variables) == 1:
            parts = [tensor]
        else:
            height = 1 if tensor.ndim == 1 else len(tensor)
            sizes = [math.prod(each.shape) // height for each in self.variables]
            parts = np.split(tensor, np.cumsum(sizes)[:-1], axis=-1)
        for variable, part in zip(self.variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))

    def tensor(self) -> np.ndarray:
        """Returns the tensor, in the dtype of the variables."""
        shape = self.shape[::-1] if self.is_transposed else self.shape
        height = (*shape[:-1], -1)
        parts = [
            np.asarray(ops.convert_to_numpy(variable)).reshape(height)
            for variable in self.variables
        ]
        tensor = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        tensor = tensor.T if self.is_transposed else tensor
        if self.scale != 1.0:
            tensor = tensor / np.asarray(self.scale, tensor.dtype)
        tensor = tensor[: self.rows]
        if self.first_row:
            front = np.zeros((self.first_row, *tensor.shape[1:]), tensor.dtype)
            tensor = np.concatenate([front, tensor])
        return np.ascontiguousarray(tensor)


def find_layer(model: keras.Model, path: str) -> Any:
    """Returns the layer at a path; `None` if the model does not have it."""
    found: Any = model
    for part in path.split("."):
        if found is None:
            return None
        found = found[int(part)] if part.isdigit() else getattr(found, part, None)
    return found


def layer_paths(
    model: keras.Model, names: LayerNames
) -> Iterator[tuple[str, list[str]]]:
    """Yields the names of a checkpoint's layers, and the paths of the layers here."""
    for name, paths in names.items():
        paths = (paths,) if isinstance(paths, str) else paths
        if "{}" not in name:
            numbers: Sequence[int | None] = [None]
        else:
            stack = paths[0].partition(".blocks.")[0]
            numbers = range(len(find_layer(model, stack).blocks))
        for number in numbers:
            found = [path.format(number) for path in paths]
            if find_layer(model, found[0]) is not None:
                yield name.format(number), found


def layer_parameters(
    name: str, layers: Sequence[keras.layers.Layer], is_transposed: bool = True
) -> Iterator[Parameter]:
    """Yields the tensors of a layer, or of several layers with one tensor."""
    first = layers[0]
    variable = functools.partial(Parameter, f"{name}.weight")
    if isinstance(first, keras.layers.Dense | keras.layers.EinsumDense):
        yield _kernel(name, layers, is_transposed)
        if first.bias is not None:
            biases = tuple(layer.bias for layer in layers)
            count = sum(math.prod(bias.shape) for bias in biases)
            yield Parameter(f"{name}.bias", biases, (count,))
    elif isinstance(first, keras.layers.LayerNormalization):
        yield variable((first.gamma,), tuple(first.gamma.shape))
        yield Parameter(f"{name}.bias", (first.beta,), tuple(first.beta.shape))
    elif isinstance(first, keras.layers.RMSNormalization):
        yield variable((first.scale,), tuple(first.scale.shape))
    elif hasattr(first, "embeddings"):
        yield variable((first.embeddings,), tuple(first.embeddings.shape))


def _kernel(
    name: str, layers: Sequence[keras.layers.Layer], is_transposed: bool
) -> Parameter:
    kernels = tuple(layer.kernel for layer in layers)
    shape = kernels[0].shape
    # The kernel of an attention output has the axes heads, key_dim and hidden_dim.
    is_output = layers[0].name == "attention_output"
    inputs = math.prod(shape[:-1] if is_output else shape[:1])
    outputs = sum(math.prod(kernel.shape) for kernel in kernels) // inputs
    order = (outputs, inputs) if is_transposed else (inputs, outputs)
    return Parameter(f"{name}.weight", kernels, order, is_transposed)
