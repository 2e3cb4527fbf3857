"""Activations by name: those of Keras, and names of other libraries."""

from collections.abc import Callable
from typing import TypeAlias

import keras

from keras_transformer.types import Config, Tensor

# A function, its name or its configuration. `None` = the identity.
Activation: TypeAlias = Callable[[Tensor], Tensor] | str | Config | None


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_new(x: Tensor) -> Tensor:
    """Computes the tanh approximation of GELU, as in GPT-2."""
    return keras.activations.gelu(x, approximate=True)


def get_activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    """Returns an activation by its name, `"gelu_new"` included, or configuration."""
    if activation == "gelu_new":
        return gelu_new
    found: Callable[[Tensor], Tensor] = keras.activations.get(activation)
    return found
