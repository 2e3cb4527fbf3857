"""Quantized weights of a SavedModel: how they are rounded, stored and read."""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.backend.keras_internals import flatten_layers
from keras_transformer.models import GenerativeModel
from keras_transformer.types import Tensor
from keras_transformer_runtime.arguments import check_one_of

QUANTIZATIONS = ("float16", "int8")

P = ParamSpec("P")
T = TypeVar("T")


class _Matrix(NamedTuple):
    """A weight that is stored in fewer bits."""

    variable: keras.Variable
    axes: tuple[int, ...]  # Axes along which numbers share a scale.


def check_quantization(model: GenerativeModel, quantization: str | None) -> None:
    """Raises `ValueError` unless weights can be stored with a quantization."""
    remedy = "`None` stores the weights as they are."
    check_one_of(QUANTIZATIONS, True, remedy, quantization=quantization)
    for layer in _layers(model) if quantization else ():
        if getattr(layer, "quantization_mode", None) is not None:
            raise ValueError(
                "`quantization` must be `None` for a model with quantized layers; "
                f"received `quantization={quantization!r}` and a model whose layer "
                f"{layer.path} is quantized."
            )


class StoredWeights(tf.Module):
    """The weights of a model in the form in which a SavedModel stores them.

    Quantization applies to the kernels of dense layers and to embeddings. Biases and
    normalizations are stored in float32: they are small, and their precision matters
    more. With `"int8"`, each output of a kernel and each row of an embedding has a
    float32 scale, and its numbers are rounded to multiples of the scale, from -127 to
    127. The largest number is 127 times the scale.
    """

    def __init__(self, model: GenerativeModel, quantization: str | None):
        super().__init__()
        matrices = _matrices(model) if quantization else []
        rounded = [matrix.variable for matrix in matrices]
        ids = {id(variable) for variable in rounded}
        self.kept = [w.value for w in model.weights if id(w) not in ids]
        self.parts = [
            [tf.Variable(part) for part in round_numbers(*matrix, quantization)]
            for matrix in matrices
        ]
        # In a function, so that TensorFlow does not store these variables as well.
        self._rounded = lambda: rounded

    def used_in(self, function: Callable[P, T]) -> Callable[P, T]:
        """Returns a function that computes with the stored weights.

        They are converted to float32 once per call.
        """
        if not self.parts:
            return function

        def with_stored_weights(*arguments: P.args, **options: P.kwargs) -> T:
            values = [restore_numbers(*parts) for parts in self.parts]
            mapping = zip(self._rounded(), values, strict=True)
            with keras.StatelessScope(state_mapping=list(mapping)):
                return function(*arguments, **options)

        return with_stored_weights


def round_numbers(
    weight: keras.Variable | Tensor, axes: tuple[int, ...], quantization: str | None
) -> list[np.ndarray]:
    """Rounds a matrix to float16, or to int8 and float32 scales of size 1 in `axes`."""
    numbers = np.array(ops.convert_to_numpy(weight), "float32")
    if quantization == "float16":
        return [numbers.astype("float16")]
    largest = np.max(np.abs(numbers), axis=axes, keepdims=True)
    scales = np.where(largest > 0, largest, 1) / np.float32(127)
    return [np.rint(numbers / scales).astype("int8"), scales]


def restore_numbers(numbers: Tensor, scales: Tensor | None = None) -> Tensor:
    """Converts the arrays of `round_numbers` to a float32 tensor."""
    restored = ops.cast(numbers, "float32")
    return restored if scales is None else restored * ops.cast(scales, "float32")


def rounded_model(model: GenerativeModel, quantization: str) -> GenerativeModel:
    """Returns a copy of a model with the weights that a SavedModel stores."""
    copy = type(model).from_config(model.get_config())
    for weight, other in zip(model.weights, copy.weights, strict=True):
        other.assign(weight)
    for variable, axes in _matrices(copy):
        parts = round_numbers(variable, axes, quantization)
        variable.assign(restore_numbers(*[ops.convert_to_tensor(x) for x in parts]))
    return copy


def _layers(model: GenerativeModel) -> list[keras.layers.Layer]:
    return flatten_layers(model)


def _matrices(model: GenerativeModel) -> list[_Matrix]:
    """Returns the kernels of dense layers and the embeddings of a model, each once."""
    found = {}
    for layer in _layers(model):
        if isinstance(layer, keras.layers.EinsumDense):
            kernel, output = layer.equation.split(",")[1].split("->")
            axes = [i for i, letter in enumerate(kernel) if letter not in output]
            found[id(layer.kernel)] = _Matrix(layer.kernel, tuple(axes))
        elif isinstance(layer, keras.layers.Dense):
            found[id(layer.kernel)] = _Matrix(layer.kernel, (0,))
        elif isinstance(layer, keras.layers.Embedding):
            found[id(layer.embeddings)] = _Matrix(layer.embeddings, (1,))
    return list(found.values())
