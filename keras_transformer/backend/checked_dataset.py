"""Checks of the batches of a `tf.data.Dataset`, on the host."""

from collections.abc import Callable
from typing import Any

import keras


def checked_dataset(check: Callable[[Any], Any], dataset: Any) -> Any:
    """Returns a dataset that calls a function with each batch.

    Args:
        check: function of a batch of NumPy arrays, which raises an error.
        dataset: a `tf.data.Dataset`.

    Returns:
        A `tf.data.Dataset` of the same batches. Its iterator raises an error of
        TensorFlow if `check` raises one. `dataset` itself if its batches have ragged or
        sparse tensors, which Keras refuses.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    if not all(isinstance(each, tf.TensorSpec) for each in keras.tree.flatten(spec)):
        return dataset

    def check_arrays(*arrays: Any) -> None:
        check(keras.tree.pack_sequence_as(spec, arrays))

    @tf.autograph.experimental.do_not_convert
    def mapped(*parts: Any) -> Any:
        tf.numpy_function(check_arrays, keras.tree.flatten(parts), [])
        return parts if isinstance(spec, tuple) else parts[0]

    return dataset.map(mapped)
