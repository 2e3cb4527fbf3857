"""Weights in fewer bits: how they are rounded, stored and read."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.backend.keras_internals import flatten_layers

QUANTIZATIONS = ("float16", "int8")


def check_quantization(model: keras.Model, quantization: str | None) -> None:
    """Makes sure that a model's weights can be stored in this way.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.
        quantization: `"float16"`, `"int8"` or `None`.

    Raises:
        ValueError: if it is something else, or the weights of the model are not as
            they were when it was built.
    """
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(
            "`quantization` must be 'float16', 'int8' or `None` for a SavedModel; "
            f"received `quantization={quantization!r}`."
        )
    for layer in flatten_layers(model) if quantization else ():
        has_lora = getattr(layer, "lora_enabled", False)
        if has_lora or getattr(layer, "quantization_mode", None) is not None:
            raise ValueError(
                "`quantization` must be `None` for a model with LoRA, or that is "
                f"quantized; received `quantization={quantization!r}` and one whose "
                f"layer {layer.path} is. Saving merges LoRA: export what is loaded."
            )


class StoredWeights(tf.Module):
    """A model's weights as a SavedModel stores them.

    Matrices, which are the kernels of dense layers and the embeddings, are stored in
    fewer bits; biases and normalisations, which are few and matter more, as they are.
    `"int8"`: a number is rounded to one of 255 multiples of a float32 scale, of which
    each output of a kernel and each row of an embedding has its own, so that its
    greatest number is 127 times the scale.

    Args:
        model: a built model of the TensorFlow backend.
        quantization: `"float16"`, `"int8"` or `None`.
    """

    def __init__(self, model: keras.Model, quantization: str | None):
        super().__init__()
        matrices = _matrices(model) if quantization else []
        rounded = [weight for weight, _ in matrices]
        ids = {id(weight) for weight in rounded}
        self.kept = [w.value for w in model.weights if id(w) not in ids]
        self.parts = [
            [tf.Variable(part) for part in round_numbers(weight, axes, quantization)]
            for weight, axes in matrices
        ]
        self._rounded = lambda: rounded  # in a function, not to be stored as well

    def used_in(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that computes with what is stored, read once a call.

        Args:
            function: takes tensors and uses the model.

        Returns:
            A function of the same arguments.
        """
        if not self.parts:
            return function

        def with_stored_weights(*arguments: Any) -> Any:
            values = [restore(*parts) for parts in self.parts]
            mapping = zip(self._rounded(), values, strict=True)
            with keras.StatelessScope(state_mapping=list(mapping)):
                return function(*arguments)

        return with_stored_weights


def round_numbers(
    weight: Any, axes: tuple[int, ...], quantization: str | None
) -> list[np.ndarray]:
    """Rounds a matrix.

    Args:
        weight: float array or variable of any shape.
        axes: those along which numbers share a scale.
        quantization: `"float16"` or `"int8"`.

    Returns:
        The float16 array; or the int8 array and the float32 scales, whose shape is
        that of the matrix with 1 for each of `axes`.
    """
    numbers = np.array(ops.convert_to_numpy(weight), "float32")
    if quantization == "float16":
        return [numbers.astype("float16")]
    largest = np.max(np.abs(numbers), axis=axes, keepdims=True)
    scales = np.where(largest > 0, largest, 1) / np.float32(127)
    return [np.rint(numbers / scales).astype("int8"), scales]


def restore(numbers: Any, scales: Any = None) -> Any:
    """Makes a float32 tensor of what `round_numbers` returned."""
    restored = ops.cast(numbers, "float32")
    return restored if scales is None else restored * ops.cast(scales, "float32")


def rounded(model: keras.Model, quantization: str) -> Any:
    """A copy of a model, with the weights that a SavedModel stores.

    Args:
        model: a `Seq2Seq` or an `Ensemble`, on any backend.
        quantization: `"float16"` or `"int8"`.

    Returns:
        A new model of the same class.
    """
    copy = type(model).from_config(model.get_config())
    for weight, other in zip(model.weights, copy.weights, strict=True):
        other.assign(weight)
    for weight, axes in _matrices(copy):
        parts = round_numbers(weight, axes, quantization)
        weight.assign(restore(*map(ops.convert_to_tensor, parts)))
    return copy


def _matrices(model: keras.Model) -> list[tuple[Any, tuple[int, ...]]]:
    """Each matrix, with the axes that its layer sums over or takes whole."""
    found = {}
    for layer in flatten_layers(model):
        if isinstance(layer, keras.layers.EinsumDense):
            kernel, output = layer.equation.split(",")[1].split("->")
            axes = [i for i, letter in enumerate(kernel) if letter not in output]
            found[id(layer.kernel)] = layer.kernel, tuple(axes)
        elif isinstance(layer, keras.layers.Dense):
            found[id(layer.kernel)] = layer.kernel, (0,)
        elif isinstance(layer, keras.layers.Embedding):
            found[id(layer.embeddings)] = layer.embeddings, (1,)
    return list(found.values())
