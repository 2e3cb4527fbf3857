"""Calls a signature of a SavedModel with lists."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

# The message of an assertion of the graph, and what it has received.
_REFUSAL = r"((?:`\w+` and )?`\w+` must[^\]\n']*)(?:(?<=received)\]( )\[(.*)\])?"


def call_signature(
    function: tf.types.experimental.ConcreteFunction,
    inputs: Mapping[str, Sequence[object]],
) -> dict[str, np.ndarray]:
    """Calls a signature.

    Args:
        function: the signature of the loaded SavedModel.
        inputs: list for each input, by its name.

    Returns:
        Arrays by the names of the outputs.

    Raises:
        ValueError: if the graph refuses an input.
    """
    specs = function.structured_input_signature[1]
    tensors = {
        name: _tensor(name, values, specs[name]) for name, values in inputs.items()
    }
    try:
        outputs = function(**tensors)
    except tf.errors.InvalidArgumentError as error:
        found = re.search(_REFUSAL, str(error))
        message = "".join(map(str, found.groups(""))) if found else error
        raise ValueError(f"{message}.") from None
    return {name: output.numpy() for name, output in outputs.items()}


def _tensor(name: str, values: Sequence[object], spec: tf.TensorSpec) -> tf.Tensor:
    try:
        tensor = tf.constant([*values], spec.dtype)
    except ValueError:  # a ragged list
        raise ValueError(
            f"`{name}` must have entries of one shape; received several."
        ) from None
    if not spec.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"`{name}` must have the shape {spec.shape}; received {tensor.shape}."
        )
    return tensor
