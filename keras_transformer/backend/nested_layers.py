"""All layers of a model, at any depth."""

from collections.abc import Iterator

import keras


def nested_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns a layer and all layers in it, at any depth.

    Keras has no public way to list the layers of a layer. Without its private method,
    the layers are found among the attributes.

    Args:
        layer: a layer or a model.

    Returns:
        List of layers, each once.
    """
    if hasattr(layer, "_flatten_layers"):
        return list(layer._flatten_layers())
    return list(_layers_in_attributes(layer, set()))


def _layers_in_attributes(
    value: object, visited: set[int]
) -> Iterator[keras.layers.Layer]:
    if id(value) in visited:
        return
    visited.add(id(value))
    items: object = ()
    if isinstance(value, keras.layers.Layer):
        yield value
        items = vars(value).values()
    elif isinstance(value, list | tuple):
        items = value
    elif isinstance(value, dict):
        items = value.values()
    for item in items:
        yield from _layers_in_attributes(item, visited)
