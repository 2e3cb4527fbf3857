"""State of a run: its content in a checkpoint, variables, history and logs."""

import contextlib
import itertools
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.keras_internals import flatten_layers, inner_optimizers
from keras_transformer.backend.processes import whole_value
from keras_transformer.backend.random_state import RandomState, check_random_state
from keras_transformer.training.checkpoints import storage
from keras_transformer.training.checkpoints.callback_state import SavedCallback
from keras_transformer.training.checkpoints.storage import Content
from keras_transformer.types import Logs
from keras_transformer_runtime.runs.run_position import RunPosition


class SavedVariable(TypedDict):
    """Path and value of a variable.

    A frozen weight of a model with LoRA has no value, `(0,)`, but its shape and its
    checksum: a run with LoRA begins with the same model again.
    """

    name: str
    value: np.ndarray
    shape: NotRequired[list[int]]
    checksum: NotRequired[int]


class SavedHistory(TypedDict):
    """The two attributes of `keras.callbacks.History`."""

    epoch: list[int]
    history: dict[str, list[float]]


class RunState(TypedDict):
    """Content of a checkpoint.

    `epoch` is the number of complete epochs, `batch` the number of complete batches of
    the next epoch. `logs` are those of an epoch that is complete.
    """

    epoch: int
    batch: int
    backend: str
    data_identity: dict[str, int] | None
    learning_rates: list[float]
    model: list[SavedVariable]
    optimizer: list[SavedVariable]
    metrics: list[SavedVariable]
    callbacks: list[SavedCallback]
    random: RandomState
    seed: int | None
    data: dict[str, int] | None
    history: SavedHistory
    logs: NotRequired[Logs]


# Types of the required entries of a checkpoint.
_TYPES: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "batch": (int,),
    "backend": (str,),
    "data_identity": (dict, type(None)),
    "learning_rates": (list,),
    "model": (list,),
    "optimizer": (list,),
    "metrics": (list,),
    "callbacks": (list,),
    "random": (dict,),
    "seed": (int, type(None)),
    "data": (dict, type(None)),
    "history": (dict,),
}


def check_state(path: pathlib.Path, state: Content) -> None:
    """Raises an error if the content of a checkpoint is not the state of a run."""
    for name, types in _TYPES.items():
        if type(state[name]) not in types:
            raise TypeError(f"`{name}` is {state[name]!r:.80}")
    check_logs(path, state)
    for name in ("model", "optimizer", "metrics"):
        check_variables(path, {"model": state[name]})
    for callback in state["callbacks"]:
        if not isinstance(callback["class"], str) or not all(callback["attributes"]):
            raise TypeError(f"a callback is {callback!r:.80}")
    history = state["history"]
    keras.tree.map_structure(int, history["epoch"])
    if not all(isinstance(values, list) for values in history["history"].values()):
        raise TypeError("`history` has no lists")
    if not all(type(rate) is float for rate in state["learning_rates"]):
        raise TypeError("`learning_rates` are not numbers")
    for name in ("data", "data_identity"):
        if not all(type(value) is int for value in (state[name] or {}).values()):
            raise TypeError(f"`{name}` is not of ints")
    check_random_state(state["random"])


def check_logs(path: pathlib.Path, state: Content) -> None:
    """Checks the entries `"epoch"`, `"batch"` and `"logs"`; see `check_state`."""
    position = RunPosition(state["epoch"], state["batch"])
    if not all(type(number) is int for number in position):
        raise TypeError(f"its position is {position!r:.80}")
    if path.name != storage.BEST and position != RunPosition.from_file_name(path.name):
        raise ValueError(f"it is at {position}, unlike its name")
    if not all(type(value) is float for value in state.get("logs", {}).values()):
        raise TypeError("`logs` are not numbers")


def check_weights(path: pathlib.Path, state: Content) -> None:
    """Checks the position, the logs and `"model"`; see `check_state`."""
    check_logs(path, state)
    check_variables(path, state)


def readable_logs(
    paths: Iterable[pathlib.Path],
) -> Iterator[tuple[pathlib.Path, Content]]:
    """Reads the positions and logs of the checkpoints that are not damaged."""
    names = ("epoch", "batch", "logs")
    return storage.readable_checkpoints(paths, *names, check=check_logs)


def check_variables(path: pathlib.Path, state: Content) -> None:
    """Checks the entry `"model"` of a checkpoint; see `check_state`."""
    for entry in state["model"]:
        keras.backend.standardize_dtype(entry["value"].dtype)
        if "checksum" in entry and entry["value"].shape != (0,):
            raise TypeError(f"a frozen variable has a value: {entry!r:.80}")
        if not isinstance(entry["name"], str):
            raise TypeError(f"a variable is {entry!r:.80}")


def save_variables(variables: Iterable[keras.Variable]) -> list[SavedVariable]:
    """Returns copies of variables; processes that train together call it together."""
    return [
        {"name": _name(variable), "value": whole_value(variable)}
        for variable in variables
    ]


def frozen_checksums(model: keras.Model) -> dict[int, int]:
    """Returns the checksums of the frozen weights of a model with LoRA, by identity."""
    if not any(getattr(each, "lora_enabled", False) for each in flatten_layers(model)):
        return {}
    frozen = [weight for weight in model.weights if not weight.trainable]
    return {id(weight): _checksum(weight) for weight in frozen}


def save_model(model: keras.Model, frozen: Mapping[int, int]) -> list[SavedVariable]:
    """Returns copies of the variables of a model, and checksums of frozen weights."""
    saved: list[SavedVariable] = []
    for variable in model.variables:
        if id(variable) in frozen:
            none = np.zeros((0,), "float32")
            entry: SavedVariable = {"name": _name(variable), "value": none}
            entry["shape"] = [*variable.shape]
            entry["checksum"] = frozen[id(variable)]
            saved.append(entry)
        else:
            saved += save_variables([variable])
    return saved


def _checksum(variable: keras.Variable) -> int:
    return zlib.crc32(np.ascontiguousarray(whole_value(variable)).data.cast("B"))


def restore_variables(
    variables: Sequence[keras.Variable],
    saved: Sequence[SavedVariable],
    source: pathlib.Path,
) -> None:
    """Sets variables to saved values."""
    check_same(variables, saved, source)
    for variable, entry in zip(variables, saved, strict=True):
        if "checksum" not in entry:
            variable.assign(entry["value"])
        elif _checksum(variable) != entry["checksum"]:
            raise ValueError(
                "`folder` must hold checkpoints of LoRA of the same model; received "
                f"{source}, where the frozen {entry['name']} has other values. Load "
                "the model with which the run began, then call `enable_lora`."
            )


def without_random_states(saved: Iterable[SavedVariable]) -> list[SavedVariable]:
    """Returns the saved variables that `Model.weights` has."""
    return [e for e in saved if not e["name"].endswith("seed_generator_state")]


def check_same(
    variables: Sequence[keras.Variable],
    saved: Sequence[SavedVariable],
    source: pathlib.Path,
) -> None:
    """Raises `ValueError` for the first difference of names or shapes."""
    ours = [f"{_name(variable)} {tuple(variable.shape)}" for variable in variables]
    theirs = [f"{entry['name']} {_shape(entry)}" for entry in saved]
    for our, their in itertools.zip_longest(ours, theirs, fillvalue="nothing"):
        # On TensorFlow, `fit` builds an optimizer within one more name scope.
        if not (our.endswith(their) or their.endswith(our)):
            raise ValueError(
                "`folder` must hold checkpoints of the same model and optimizer; "
                f"received {source}, which has {their} in place of {our}. Use a "
                "separate folder for each run."
            )


def _shape(entry: SavedVariable) -> tuple[int, ...]:
    return tuple(entry.get("shape", entry["value"].shape))


def _name(variable: keras.Variable) -> str:
    """Returns the path without the numbers that Keras appends to repeated names."""
    return re.sub(r"_\d+", "", variable.path)


def all_finite(saved: Iterable[SavedVariable]) -> bool:
    """Returns whether saved values contain neither NaN nor infinity."""
    return all(np.isfinite(entry["value"]).all() for entry in saved)


def build_metrics(model: keras.Model, batch: tuple[object, ...]) -> None:
    """Builds the metrics of a compiled model.

    On TensorFlow, `fit` builds them in the first step, when it is too late to restore
    their values.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = model(x)
    model.compute_loss(x, y, y_pred, sample_weight, training=False)
    model.compute_metrics(x, y, y_pred, sample_weight)


def learning_rates(optimizer: keras.optimizers.Optimizer) -> list[float]:
    """Returns the learning rates that are numbers, not schedules."""
    return [
        float(ops.convert_to_numpy(variable))
        for each in inner_optimizers(optimizer)
        for variable in each.variables
        if variable.name == "learning_rate"
    ]


def save_history(
    model: keras.Model, epoch: int | None = None, logs: Logs | None = None
) -> SavedHistory:
    """Returns a copy of the history of a run, with the logs of an epoch that has ended.

    `History`, another callback, may not have them yet.
    """
    epochs = [*model.history.epoch]
    history = {name: [*values] for name, values in model.history.history.items()}
    if epoch is not None and epoch not in epochs:
        epochs.append(epoch)
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(value)
    return {"epoch": epochs, "history": history}


def save_logs(logs: Mapping[str, object] | None) -> Logs:
    """Returns the logs of an epoch that are numbers or scalar tensors."""
    saved = {}
    value: Any
    for name, value in (logs or {}).items():
        if ops.is_tensor(value) or isinstance(value, keras.Variable):
            value = ops.convert_to_numpy(value)
        with contextlib.suppress(TypeError, ValueError):
            if np.ndim(value) == 0:
                saved[name] = float(value)
    return saved
