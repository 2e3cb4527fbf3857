"""Training on several devices, of one process or of several."""

import contextlib
import contextvars
import warnings
from collections.abc import Iterable, Iterator

import keras

from keras_transformer.backend.distribution import (
    CLEARED,
    are_outside_scope,
    is_scope_cleared,
    list_replica_devices,
    mirrored_scope,
)
from keras_transformer.backend.processes import count_processes
from keras_transformer.backend.sharding import (
    advice_on_virtual_devices,
    devices_in_effect,
    devices_of,
)
from keras_transformer.backend.torch_processes import device_kind, join_processes
from keras_transformer_runtime.arguments import check_ints

_BATCH, _MODEL = "batch", "model"
# The axis of each variable that the devices of a replica divide: the vocabulary, the
# attention heads, the width of the feed-forward networks. All others are whole.
_LAYOUTS: dict[str, tuple[str | None, ...]] = {
    r".*embedding(_\d+)?/embeddings$": (_MODEL, None),
    r"^output/kernel$": (None, _MODEL),
    r"^output_bias$": (_MODEL,),
    r".*attention[^/]*/(query|key|value|gate)/kernel$": (None, _MODEL, None),
    r".*attention[^/]*/(query|key|value|gate)/bias$": (_MODEL, None),
    r".*attention_output/kernel$": (_MODEL, None, None),
    r".*feed_forward[^/]*/(intermediate|gate)/kernel$": (None, _MODEL),
    r".*feed_forward[^/]*/(intermediate|gate)/bias$": (_MODEL,),
    r".*feed_forward[^/]*/output/kernel$": (_MODEL, None),
}

_active: contextvars.ContextVar["_Devices | None"] = contextvars.ContextVar(
    "_active", default=None
)


class _Devices(keras.distribution.ModelParallel):
    """Data and tensor parallelism over a grid of devices."""

    def __init__(self, devices: list[str], model_parallel: int) -> None:
        shape = len(devices) // model_parallel, model_parallel
        mesh = keras.distribution.DeviceMesh(shape, (_BATCH, _MODEL), devices)
        layouts = keras.distribution.LayoutMap(mesh)
        for path, axes in _LAYOUTS.items():
            layouts[path] = axes
        super().__init__(
            layout_map=layouts, batch_dim_name=_BATCH, auto_shard_dataset=False
        )
        self.model_parallel = model_parallel

    def get_data_layout(
        self, data_shape: tuple[int, ...]
    ) -> keras.distribution.TensorLayout:
        # Every device gets the ids of the whole batch, and the step divides the rows:
        # Keras takes one layout for all batches, and rows need not divide.
        return self._whole(data_shape)

    def get_variable_layout(
        self, variable: keras.Variable
    ) -> keras.distribution.TensorLayout:
        layout = super().get_variable_layout(variable)
        if len(layout.axes) != len(variable.shape):
            return self._whole(variable.shape)
        for axis, size in zip(layout.axes, variable.shape, strict=True):
            if axis == _MODEL and size % self.model_parallel:
                self._warn(variable.path, size)
                return self._whole(variable.shape)
        return layout

    def _warn(self, path: str, size: int) -> None:
        *_, layer, name = path.split("/")
        if name != "bias":  # the kernel of its layer has warned
            warnings.warn(
                f"Each device holds the whole `{layer}/{name}`: its {size} tokens or "
                "heads are not a multiple of `model_parallel="
                f"{self.model_parallel}`.",
                stacklevel=2,
            )

    def _whole(self, shape: Iterable[int | None]) -> keras.distribution.TensorLayout:
        return keras.distribution.TensorLayout([None for _ in shape], self.device_mesh)


@contextlib.contextmanager
def distribute(
    devices: int | list[str] | None = None, model_parallel: int = 1
) -> Iterator[list[str]]:
    """A context in which models are created and trained on several devices.

    Create, compile and train the model and its optimizer within the context. The
    devices share the rows of each batch, and losses, metrics and updates are those of
    one device for the whole batch. The number of rows need not be a multiple of the
    number of devices. After the context, `save`, `generate` and `export` work as usual.

    - **JAX**: the devices of one process or, after `keras.distribution.initialize`, of
      all processes. The weights stay on the devices after the context.
    - **PyTorch**: one process for each device. `torchrun --nproc-per-node 4 program.py`
      starts them, and the context connects them, until they end. `evaluate` and
      `predict` compute all rows in each process. Without `torchrun`, the program trains
      on one device.
    - **TensorFlow**: the devices of this process, by `tf.distribute.MirroredStrategy`.

    Several processes run the same program on the same files, and pass the same batches
    to `fit`. All processes call `Checkpoints`, `save` and `export`; the first one
    prints, and writes the files. `generate` runs in each process separately.

    With `model_parallel`, on JAX, each group of this number of devices is one replica
    of the model. The devices of a group share its weights and the state of the
    optimizer: the embeddings are divided over the vocabulary, attention over the heads,
    and feed-forward networks over their width.

    Args:
        devices: int >= 1, number of devices; or a list of the names of devices, on JAX
            as in `keras.distribution.list_devices()`, on TensorFlow as in
            `tf.config.list_logical_devices()`. `None` = all devices. On PyTorch and in
            several processes of JAX, `None` or the number of all devices.
        model_parallel: int >= 1, number of devices that share the weights of a
            replica; 1 on TensorFlow and PyTorch. It must divide the number of devices,
            `num_heads` and `intermediate_dim` of the model. If it does not divide the
            size of the vocabulary or the number of key and value heads, each device
            holds these weights whole, with a warning.

    Yields:
        list of str, the names of the devices.

    Raises:
        ValueError: if there are fewer devices or processes, or if `model_parallel` does
            not divide the number of devices or is above 1 on TensorFlow or PyTorch;
            from the constructor of a model, if it does not divide the sizes of the
            model; from `compile` and `fit`, if the model, the optimizer or a metric was
            created outside, or if `keras.utils.clear_session` was called within the
            context.

    Example:

    ```python
    with kt.distribute(devices=4):
        model = kt.Seq2Seq(
            num_layers=6,
            hidden_dim=512,
            intermediate_dim=2048,
            num_heads=8,
            source_tokenizer=tokenizer,
        )
        model.compile("adam", kt.LabelSmoothedCrossEntropy())
        model.fit(train.dataset, epochs=40, shuffle=False)
    ```

    References:
        - [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3 (heads
          and widths divided among devices)
        - [Ott et al., 2018](https://arxiv.org/abs/1806.00187), section 3 (gradients of
          several devices as one mean over the tokens)
    """
    check_ints(1, model_parallel=model_parallel)
    if not isinstance(devices, list | tuple):
        check_ints(1, optional=True, devices=devices)
    backend = keras.backend.backend()
    if model_parallel > 1 and backend != "jax":
        raise ValueError(
            "`model_parallel` above 1 must be used on JAX; received `model_parallel="
            f"{model_parallel}` and the backend {backend!r}. Set KERAS_BACKEND=jax "
            "before Keras is imported."
        )
    contexts = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
    with contexts[backend](devices, model_parallel) as names:
        yield names


@contextlib.contextmanager
def _jax(devices: int | list[str] | None, model_parallel: int) -> Iterator[list[str]]:
    names = _chosen(devices, keras.distribution.list_devices())
    if count_processes() > 1 and set(names) != {*keras.distribution.list_devices()}:
        raise ValueError(
            "`devices` must be None or all "
            f"{len(keras.distribution.list_devices())} devices of the "
            f"{count_processes()} processes; received `devices={devices!r}`."
        )
    if len(names) % model_parallel:
        raise ValueError(
            "`model_parallel` must divide the number of devices; received "
            f"`model_parallel={model_parallel}` and {len(names)} devices."
        )
    found = _Devices(names, model_parallel)
    token = _active.set(found)
    try:
        with found.scope():
            yield names
    finally:
        _active.reset(token)


@contextlib.contextmanager
def _tensorflow(
    devices: int | list[str] | None, model_parallel: int
) -> Iterator[list[str]]:
    names = _chosen(devices, list_replica_devices())
    with mirrored_scope(names):
        yield names


@contextlib.contextmanager
def _torch(devices: int | list[str] | None, model_parallel: int) -> Iterator[list[str]]:
    join_processes()
    count = count_processes()
    wanted = len(devices) if isinstance(devices, list | tuple) else devices
    if wanted not in (None, count):
        raise ValueError(
            "`devices` must be None or the number of processes on PyTorch, one for "
            f"each device; received `devices={devices!r}` and {count} "
            f"{'process' if count == 1 else 'processes'}. Start the program with "
            f"`torchrun --nproc-per-node {wanted} program.py`, or use "
            f"`keras-transformer train --devices {wanted}`."
        )
    yield [f"{device_kind()}:{index}" for index in range(count)]


def _chosen(devices: int | list[str] | None, present: list[str]) -> list[str]:
    """Returns the names of the devices that `distribute` uses."""
    if devices is None:
        return list(present)
    names = present[:devices] if isinstance(devices, int) else list(devices)
    wanted = devices if isinstance(devices, int) else len(names)
    if not names or len({*names} & {*present}) != wanted:
        is_cpu = all("cpu" in name.lower() for name in present)
        hint = advice_on_virtual_devices(wanted) if is_cpu else ""
        raise ValueError(
            f"`devices` must be devices of this machine, which has {len(present)} "
            f"({', '.join(present)}); received `devices={devices!r}`.{hint}"
        )
    return names


def check_active() -> None:
    """Checks that the devices of `distribute` are still in effect."""
    is_lost = _active.get() is not None and keras.distribution.distribution() is None
    if is_lost or is_scope_cleared():
        raise ValueError(CLEARED)


def check_model_sizes(*, num_heads: int, intermediate_dim: int | None = None) -> None:
    """Checks that the devices of `distribute` can share the weights of a model."""
    check_active()
    found = _active.get()
    sizes = {"num_heads": num_heads, "intermediate_dim": intermediate_dim}
    for name, size in sizes.items():
        if found is not None and size is not None and size % found.model_parallel:
            raise ValueError(
                f"`{name}` must be a multiple of the `model_parallel="
                f"{found.model_parallel}` of `distribute`, whose devices share the "
                f"weights; received `{name}={size}`."
            )


def check_created_within(**variables: Iterable[keras.Variable]) -> None:
    """Checks that variables are on the devices of the current distribution."""
    if keras.backend.backend() == "torch":
        return
    check_active()
    if keras.backend.backend() == "tensorflow":
        for name, each in variables.items():
            if are_outside_scope(each):
                raise ValueError(_created_outside(name))
        return
    devices = devices_in_effect()
    for name, each in variables.items():
        found = devices_of(each)
        if devices is None:
            several = next((len(d) for d in found if len(d) > 1), None)
            if several:
                raise ValueError(
                    f"`{name}` must be used within the `distribute` in which it was "
                    f"created; received `{name}` on {several} devices, and no "
                    "`distribute`. Call `fit` within the context."
                )
        elif found - {devices}:
            raise ValueError(_created_outside(name))


def _created_outside(name: str) -> str:
    return (
        f"`{name}` must be created within the `distribute` in which the model is "
        f"trained; received `{name}` on other devices. Move its creation into the "
        "context."
    )
