"""Sub-layers of a layer: options of their weights, and freezing."""

from types import ModuleType
from typing import TypeAlias

import keras

from keras_transformer.types import Config, Shape

# An initializer, its name or its configuration.
Initializer: TypeAlias = str | Config | keras.Initializer

_MODULES = {
    "initializer": keras.initializers,
    "regularizer": keras.regularizers,
    "constraint": keras.constraints,
}


def get_weight_options(**options: object) -> Config:
    """Returns initializers, regularizers and constraints as objects."""
    return {name: _module(name).get(option) for name, option in options.items()}


def clone_weight_options(**options: object) -> Config:
    """Clones the initializers, so that each sub-layer has its own."""
    return {
        name: option.clone() if isinstance(option, keras.Initializer) else option
        for name, option in options.items()
    }


def serialize_weight_options(**options: object) -> Config:
    """Serializes initializers, regularizers and constraints."""
    return {name: _module(name).serialize(option) for name, option in options.items()}


def _module(name: str) -> ModuleType:
    return _MODULES[name.rpartition("_")[2]]


def known_size(shape: Shape, axis: int = -1) -> int:
    """Returns the size of an axis on which the weights of a layer depend."""
    size = shape[axis]
    if size is None:
        raise ValueError(
            f"The size of axis {axis} of the inputs must be known when a layer is "
            f"built; received an input of shape {tuple(shape)}."
        )
    return size


def freeze_new_sub_layers(layer: keras.layers.Layer) -> None:
    """Freezes the sub-layers of a frozen layer at the end of its `build`.

    Keras passes `trainable` to the sub-layers that exist when it is set. A layer made
    with `trainable=False`, for example when a file is loaded, creates its sub-layers
    later.
    """
    if not layer.trainable:
        # Under TensorFlow, setting the same value has no effect.
        layer.trainable = True
        layer.trainable = False
