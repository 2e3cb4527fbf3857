"""Activations by name: those of Keras, and names of other libraries."""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.types import Tensor


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_new(x: Tensor) -> Tensor:
    """Computes the tanh approximation of GELU, as in GPT-2.

    Args:
        x: float tensor of any shape.

    Returns:
        Tensor of the shape and dtype of `x`.

    Example:

    >>> round(float(gelu_new(ops.convert_to_tensor(1.0))), 4)
    0.8412

    References:
        - [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415), section 2
    """
    return keras.activations.gelu(x, approximate=True)


def get_activation(activation: Any) -> Callable[..., Any]:
    """Returns an activation."""
    return gelu_new if activation == "gelu_new" else keras.activations.get(activation)
