"""Quantized layers, which Keras cannot restore from a file."""

import keras

from keras_transformer.backend.keras_internals import flatten_layers


def check_not_quantized(model: keras.Model) -> None:
    """Checks that no layer is quantized, since a file of such a model is unreadable.

    Args:
        model: a model.

    Raises:
        ValueError: if a layer is quantized.
    """
    for layer in flatten_layers(model):
        mode = getattr(layer, "quantization_mode", None)
        if mode is not None:
            raise ValueError(
                "a quantized model cannot be saved or exported, since its codes "
                f"cannot be loaded; received a model with the {mode} layer "
                f"{layer.path}. Save it before you quantize it, and quantize the "
                "loaded model; or pass `quantization` to `export`, which rounds the "
                "exported weights."
            )
