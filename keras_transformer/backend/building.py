"""The one place that builds a model before `fit` does, which wants a batch for it."""

from typing import Any

import keras


def build_like(model: keras.Model, data: Any) -> None:
    """Builds a model and its metrics from the shapes of a dataset.

    On JAX and PyTorch `fit` would take a batch from a first iterator over the data, and
    then begin another one: an epoch of data that are never the same again was lost.

    Args:
        model: a compiled model.
        data: what `fit` is given; nothing is done unless it is a `tf.data.Dataset`.
    """
    if keras.backend.backend() == "tensorflow" or not hasattr(data, "element_spec"):
        return
    batch = keras.tree.map_structure(
        lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name),
        data.element_spec,
    )
    model._symbolic_build(data_batch=batch)
