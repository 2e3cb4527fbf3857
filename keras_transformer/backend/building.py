"""The one place that builds a model before `fit` does, which wants a batch for it."""

from typing import Any

import keras


def build_like(model: keras.Model, data: Any) -> None:
    """Builds a model and its metrics from the shapes of a dataset.

    On JAX and PyTorch `fit` would take a batch from a first iterator over the data, and
    then begin another one: an epoch of data that are never the same again was lost.

    Args:
        model: a model; nothing is done unless it is compiled.
        data: what `fit` is given; nothing is done unless it is a `tf.data.Dataset`
            whose tensors have a known number of axes.
    """
    is_dataset = hasattr(data, "element_spec")
    if keras.backend.backend() == "tensorflow" or not (is_dataset and model.compiled):
        return
    specs = keras.tree.flatten(data.element_spec)
    if all(spec.shape.rank is not None for spec in specs):
        batch = keras.tree.map_structure(_symbol, data.element_spec)
        model._symbolic_build(data_batch=batch)


def _symbol(spec: Any) -> keras.KerasTensor:
    """A tensor of any size there may be; that of a free axis is small."""
    shape = [2 if size is None else size for size in spec.shape]
    return keras.KerasTensor(shape, spec.dtype.name)
