"""Batches and variables on several devices of `keras.distribution`, on JAX."""

from typing import Any, TypeVar

import keras

T = TypeVar("T")


def share_rows(batch: T) -> T:
    """Divides the rows of a batch among the devices of the current distribution.

    Within a compiled step of JAX, the compiler then divides all that is computed from
    the rows. It adds rows on its own where they do not divide; the results have none.

    Args:
        batch: nested tensors `(rows, …)`; they may contain `None`.

    Returns:
        The same tensors; `batch` if there is no distribution.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return batch

    def share(tensor: Any) -> Any:
        if tensor is None or not len(tensor.shape):
            return tensor
        axes = [distribution.batch_dim_name, *[None] * (len(tensor.shape) - 1)]
        layout = keras.distribution.TensorLayout(axes, distribution.device_mesh)
        return keras.distribution.distribute_tensor(tensor, layout)

    shared: T = keras.tree.map_structure(share, batch)
    return shared


def devices_of(variables: list[keras.Variable]) -> set[frozenset[str]]:
    """Returns the sets of devices on which variables are.

    Args:
        variables: built Keras variables on JAX.

    Returns:
        Set with one frozen set of the names of devices, such as `"cpu:0"`, if all
        variables are on the same devices; empty without variables.
    """
    return {
        frozenset(f"{d.platform}:{d.id}" for d in variable.value.sharding.device_set)
        for variable in variables
    }
