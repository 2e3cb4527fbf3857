"""Batches and variables on several devices of `keras.distribution`, on JAX."""

import contextlib
import os
from collections.abc import Iterable
from typing import Any, TypeVar

import keras

from keras_transformer.types import Tensor

T = TypeVar("T")


def share_rows(batch: T) -> T:
    """Divides the rows of nested tensors `(rows, …)` among the devices in use.

    Within a compiled step of JAX, the compiler then divides all that is computed from
    the rows. If the devices cannot divide them, the results are correct, but some
    layers compute all rows on every device; see `rows_to_add`.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return batch

    def share(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not len(tensor.shape):
            return tensor
        axes = [distribution.batch_dim_name, *[None] * (len(tensor.shape) - 1)]
        layout = keras.distribution.TensorLayout(axes, distribution.device_mesh)
        return keras.distribution.distribute_tensor(tensor, layout)

    shared: T = keras.tree.map_structure(share, batch)
    return shared


def rows_to_add(rows: int) -> int:
    """Returns the number of rows that a batch lacks to divide among the devices."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 0
    mesh = distribution.device_mesh
    shares = mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]
    return int(-rows % shares)


def devices_of(variables: Iterable[keras.Variable]) -> set[frozenset[object]]:
    """Returns the sets of JAX devices on which variables are."""
    values: list[Any] = [variable.value for variable in variables]
    return {frozenset(value.sharding.device_set) for value in values}


def devices_in_effect() -> frozenset[object] | None:
    """Returns the JAX devices of the current distribution; `None` without one."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    return frozenset(distribution.device_mesh.backend_mesh.devices.flat)


def check_jax(name: str) -> None:
    """Raises `ValueError` for a function or class that needs JAX on another backend."""
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"`{name}` must be used on JAX; received the backend "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=jax before Keras is "
            "imported."
        )


def advice_on_virtual_devices(count: int) -> str:
    """Returns the end of an error message for too few devices."""
    remedies = {
        "jax": f"set XLA_FLAGS=--xla_force_host_platform_device_count={count} before "
        "JAX is imported",
        "tensorflow": "call tf.config.set_logical_device_configuration before "
        f"TensorFlow uses the CPU, with {count} `tf.config.LogicalDeviceConfiguration`",
    }
    return (
        " To try several devices on a CPU, "
        f"{remedies[keras.backend.backend()]}; this is not faster than one device."
    )


def add_virtual_devices(count: int) -> None:
    """Makes JAX or TensorFlow divide the CPU into virtual devices, to test several.

    It has no effect on other devices, after the backend has started, or if `XLA_FLAGS`
    determines the number.
    """
    if keras.backend.backend() == "tensorflow":
        _add_logical_devices(count)
    if keras.backend.backend() != "jax":
        return
    import jax

    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX has started.
            jax.config.update("jax_num_cpu_devices", count)


def _add_logical_devices(count: int) -> None:
    import tensorflow as tf

    cpu, *_ = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
        with contextlib.suppress(RuntimeError):  # TensorFlow has started.
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
