"""What the public API of Keras has in parts only: layers, builds, states of `fit`.

The README of this folder lists the private names. If one is missing, the fallback does
the same with public names, or the docstring describes the effect.
"""

import collections
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_transformer.types import Tensor

# Attributes of Keras's callbacks that `on_train_begin` resets.
_STATE: dict[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: (
        *("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    ),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving"),
    keras.callbacks.ReduceLROnPlateau: ("best", "cooldown_counter", "wait"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
}


def flatten_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Lists a layer and all its sub-layers; `Model.layers` omits inner ones."""
    found: dict[int, keras.layers.Layer] = {}
    queue = collections.deque([layer])
    while queue:
        each = queue.popleft()
        if id(each) not in found:
            found[id(each)] = each
            queue.extend(_layers_in(vars(each).values()))
    return list(found.values())


def _layers_in(values: Iterable[object]) -> Iterator[keras.layers.Layer]:
    for value in values:
        if isinstance(value, keras.layers.Layer):
            yield value
        elif isinstance(value, list | tuple | set):
            yield from _layers_in(value)
        elif isinstance(value, dict):
            yield from _layers_in(value.values())


def public_attributes(layer: keras.layers.Layer) -> dict[str, object]:
    """Returns the public attributes of a layer by name.

    On PyTorch, a layer is a module, whose sub-modules are not in `vars`.
    """
    found = {**vars(layer)}
    if hasattr(layer, "named_children"):
        found |= dict(layer.named_children())
    return {name: each for name, each in found.items() if not name.startswith("_")}


def check_not_quantized(model: keras.Model) -> None:
    """Checks that no layer is quantized, for files of models with floats."""
    for layer in flatten_layers(model):
        mode = getattr(layer, "quantization_mode", None)
        if mode is not None:
            raise ValueError(
                "A quantized model cannot be exported or saved as a preset; received a "
                f"model with the {mode} layer {layer.path}. Save it in a `.keras` "
                "file, or export it before you quantize it; `quantization` of `export` "
                "rounds the exported weights."
            )


def build_from_dataset(model: keras.Model, data: object) -> None:
    """Builds a compiled model and its metrics from the shapes of a dataset.

    `fit` on JAX and PyTorch builds them from a batch of a first iterator, which would
    waste one epoch of data if every epoch differs. Without the private method, or for
    `data` other than a dataset of tensors of known rank, `fit` builds them.
    """
    spec = getattr(data, "element_spec", None)
    is_built_by_fit = keras.backend.backend() == "tensorflow" or not model.compiled
    if is_built_by_fit or spec is None:
        return
    batch = symbolic_batch(spec)
    if batch is not None and hasattr(model, "_symbolic_build"):
        model._symbolic_build(data_batch=batch)


def symbolic_batch(spec: object) -> Any:
    """Converts the `element_spec` of a dataset to Keras tensors; 2 for unknown sizes.

    Returns `None` if a rank is unknown.
    """
    shapes = [getattr(each, "shape", None) for each in keras.tree.flatten(spec)]
    if not shapes or any(shape is not None and shape.rank is None for shape in shapes):
        return None
    return keras.tree.map_structure(_symbolic_tensor, spec)


def _symbolic_tensor(spec: Any) -> keras.KerasTensor | None:
    if not hasattr(spec, "dtype"):
        return None
    shape = [2 if size is None else size for size in spec.shape]
    return keras.KerasTensor(shape, spec.dtype.name)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes the running `fit` begin with another epoch.

    `keras.callbacks.BackupAndRestore` uses the same attribute. Without it, `fit` begins
    with `initial_epoch`, which the caller must check in `on_epoch_begin`.
    """
    model._initial_epoch = epoch


def inner_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Lists the optimizers inside wrappers: several for a `MultiOptimizer`."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return list(getattr(optimizer, "optimizers", [optimizer]))


def count_steps(optimizer: keras.optimizers.Optimizer) -> Tensor:
    """Returns the number of batches that an optimizer has been applied to.

    With gradient accumulation, several batches are one of `optimizer.iterations`. The
    variable itself is public.
    """
    return next(v for v in optimizer.variables if v.name == "iteration")


def learning_rate_schedule(
    optimizer: keras.optimizers.Optimizer,
) -> keras.optimizers.schedules.LearningRateSchedule | None:
    """Returns the schedule whose current value is `optimizer.learning_rate`, or `None`.

    The fallback makes a copy from the configuration of the optimizer.
    """
    if hasattr(optimizer, "_learning_rate"):
        rate = optimizer._learning_rate
    else:
        rate = optimizer.get_config()["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return rate if is_schedule else None


def callback_state(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Lists the attributes in which a callback of Keras stores the state of a run.

    Keras has no public method that saves and restores a callback. A private attribute
    that is missing is left out, with a warning.
    """
    for kind, names in _STATE.items():
        if isinstance(callback, kind):
            missing = {n for n in names if n[0] == "_" and not hasattr(callback, n)}
            if missing:
                warnings.warn(
                    f"Keras {keras.version()} has no "
                    f"`{kind.__name__}.{', '.join(sorted(missing))}`: checkpoints do "
                    "not hold the state of this callback.",
                    stacklevel=2,
                )
            return tuple(name for name in names if name not in missing)
    return ()


def finalize_averages(swap: keras.callbacks.SwapEMAWeights) -> None:
    """Makes the averages in the model final, as the callback does after `fit`.

    At its end, `fit` copies the averages of the optimizer into the model. If the model
    has the averages already, this function copies them into the optimizer as well: it
    runs a last epoch of the callback.
    """
    params = swap.params
    swap.set_params({**params, "epochs": 1})
    swap.on_epoch_begin(0)
    swap.on_epoch_end(0)
    swap.set_params(params)
