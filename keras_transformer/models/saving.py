"""Saving a model whole or not at all: a method of `Seq2Seq`."""

import pathlib
from typing import Any

import keras

from keras_transformer.backend.keras_internals import flatten_layers
from keras_transformer.files import written_aside


def save(model: Any, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
    """Saves the model as `keras.Model.save` does, the file whole or not at all.

    Args:
        model: the `Seq2Seq`.
        filepath: a path that ends in `.keras`.
        overwrite: whether to replace a file that is there without asking.
        **kwargs: further arguments of `keras.Model.save`.

    Raises:
        ValueError: if the model is quantized.
    """
    check_not_quantized(model)
    path = pathlib.Path(filepath)
    remote = "://" in str(filepath)
    if remote or path.suffix != ".keras" or (path.exists() and not overwrite):
        keras.Model.save(model, filepath, overwrite=overwrite, **kwargs)
        return
    with written_aside(path) as aside:
        keras.Model.save(model, aside, **kwargs)


def check_not_quantized(model: Any) -> None:
    """Checks that what a file has of a model can be read again.

    Args:
        model: a model.

    Raises:
        ValueError: if a layer is quantized: nobody makes it so again.
    """
    for layer in flatten_layers(model):
        mode = getattr(layer, "quantization_mode", None)
        if mode is not None:
            raise ValueError(
                "a model must not be quantized to be saved or exported, as its codes "
                f"are not read back; received one whose layer {layer.path} is {mode}. "
                "Save it before, and quantize what is loaded; or let `export` round "
                "the weights that it writes, with `quantization`."
            )
