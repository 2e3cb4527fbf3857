"""Training on several devices, of one process or of several, on JAX."""

import contextlib
import contextvars
import warnings
from collections.abc import Iterable, Iterator

import keras

from keras_transformer.backend.processes import count_processes
from keras_transformer.backend.sharding import (
    advice_on_virtual_devices,
    check_jax,
    devices_in_effect,
    devices_of,
)
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
) -> Iterator[keras.distribution.ModelParallel]:
    """A context in which models are created and trained on several devices, on JAX.

    Create, compile and train the model and its optimizer within the context. The
    devices share the rows of each batch, and losses, metrics and updates are those of
    one device for the whole batch. The number of rows need not be a multiple of the
    number of devices. After the context, `save`, `generate` and `export` work as usual.
    The weights stay on the devices.

    After `keras.distribution.initialize`, the devices are those of all processes. Each
    process runs the same program on the same files, and passes the same batches to
    `fit`. All processes call `Checkpoints`, `save` and `export`; the first one prints,
    and writes the files. `generate` runs in each process separately.

    With `model_parallel`, each group of this number of devices is one replica of the
    model. The devices of a group share its weights and the state of the optimizer: the
    embeddings are divided over the vocabulary, attention over the heads, and
    feed-forward networks over their width.

    Args:
        devices: int >= 1, number of devices; or a list of the names of devices, as in
            `keras.distribution.list_devices()`. `None` = all devices.
        model_parallel: int >= 1, number of devices that share the weights of a
            replica. It must divide the number of devices, `num_heads` and
            `intermediate_dim` of the model. If it does not divide the size of the
            vocabulary or the number of key and value heads, each device holds these
            weights whole, with a warning.

    Yields:
        The `keras.distribution.ModelParallel` in effect.

    Raises:
        ValueError: if the backend is not JAX, if there are fewer devices, or if
            `model_parallel` does not divide their number; from the constructor of a
            model, if it does not divide the sizes of the model; from `compile` and
            `fit`, if the model, the optimizer or a metric was created outside, or if
            `keras.utils.clear_session` was called within the context.

    Example:

    ```python
    with kt.distribute(devices=4, model_parallel=2):
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
    """
    check_jax(
        "distribute",
        " On TensorFlow, `tf.distribute.MirroredStrategy` trains on the devices of one "
        "machine.",
    )
    names = _device_names(devices)
    if count_processes() > 1 and set(names) != {*keras.distribution.list_devices()}:
        raise ValueError(
            "`devices` must be None or all "
            f"{len(keras.distribution.list_devices())} devices of the "
            f"{count_processes()} processes; received `devices={devices!r}`."
        )
    check_ints(1, model_parallel=model_parallel)
    if len(names) % model_parallel:
        raise ValueError(
            "`model_parallel` must divide the number of devices; received "
            f"`model_parallel={model_parallel}` and {len(names)} devices."
        )
    found = _Devices(names, model_parallel)
    token = _active.set(found)
    try:
        with found.scope():
            yield found
    finally:
        _active.reset(token)


def _device_names(devices: int | list[str] | None) -> list[str]:
    present = keras.distribution.list_devices()
    if devices is None:
        return list(present)
    if not isinstance(devices, list | tuple):
        check_ints(1, devices=devices)
    names = present[:devices] if isinstance(devices, int) else list(devices)
    wanted = devices if isinstance(devices, int) else len(names)
    if not names or len({*names} & {*present}) != wanted:
        is_cpu = all(name.startswith("cpu") for name in present)
        hint = advice_on_virtual_devices(wanted) if is_cpu else ""
        raise ValueError(
            f"`devices` must be devices of this machine, which has {len(present)} "
            f"({', '.join(present)}); received `devices={devices!r}`.{hint}"
        )
    return names


def check_active() -> None:
    """Checks that the devices of `distribute` are still in effect."""
    if _active.get() is not None and keras.distribution.distribution() is None:
        raise ValueError(
            "`keras.utils.clear_session` must not be called within `distribute`: it "
            "clears the devices, and the model would train on one of them. Call it "
            "before the context."
        )


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
    if keras.backend.backend() != "jax":
        return
    check_active()
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
            raise ValueError(
                f"`{name}` must be created within the `distribute` in which the model "
                f"is trained; received `{name}` on other devices. Move its creation "
                "into the context."
            )
