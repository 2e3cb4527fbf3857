"""Checks of the batches of a `tf.data.Dataset`, on the host."""

from collections.abc import Callable
from typing import Any

import keras


def checked_dataset(check: Callable[[object], object], dataset: Any) -> Any:
    """Returns a `tf.data.Dataset` that calls a function with each batch, as arrays.

    If `check` raises an error, the iterator raises one of TensorFlow. Datasets of
    ragged or sparse tensors, which Keras refuses, stay as they are.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    if not all(isinstance(each, tf.TensorSpec) for each in keras.tree.flatten(spec)):
        return dataset

    def check_arrays(*arrays: object) -> None:
        check(keras.tree.pack_sequence_as(spec, arrays))

    @tf.autograph.experimental.do_not_convert
    def mapped(*parts: object) -> object:
        tf.numpy_function(check_arrays, keras.tree.flatten(parts), [])
        return parts if isinstance(spec, tuple) else parts[0]

    return dataset.map(mapped)
