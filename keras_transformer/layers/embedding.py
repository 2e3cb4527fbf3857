"""The embedding of tokens."""

import warnings
from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_transformer")
class Embedding(keras.layers.Embedding):
    """An embedding whose matrix is the output's too.

    It has the name of Keras's class, by which files know the layer.
    """

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Leaves the layer as it is, with a warning."""
        warnings.warn(
            f"`{self.name}` is not quantized, as its matrix is the output's too.",
            stacklevel=2,
        )
