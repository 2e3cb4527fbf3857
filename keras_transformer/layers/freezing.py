"""Layers that are frozen before their sub-layers are there."""

import keras


def freeze_new_layers(layer: keras.layers.Layer) -> None:
    """Freezes the sub-layers of a layer that is frozen.

    Keras tells the sub-layers of the moment when `trainable` is set. Those of a layer
    made with `trainable=False`, as of one that comes from a file, were not there yet.

    Args:
        layer: a layer at the end of its `build`.
    """
    if not layer.trainable:
        layer.trainable = True  # TensorFlow's Keras does nothing for the same value
        layer.trainable = False
