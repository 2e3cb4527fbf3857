"""State of a run: variables, history and random generators."""

import contextlib
import itertools
import pathlib
import random
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.processes import whole_value
from keras_transformer.training.checkpoints.callback_state import SavedCallback
from keras_transformer.training.checkpoints.storage import BEST
from keras_transformer_runtime.runs.run_position import RunPosition


class SavedVariable(TypedDict):
    """Path and value of a variable."""

    name: str
    value: np.ndarray


class SavedHistory(TypedDict):
    """The two attributes of `keras.callbacks.History`."""

    epoch: list[int]
    history: dict[str, list[Any]]


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
    random: dict[str, Any]
    seed: int | None
    data: dict[str, int] | None
    history: SavedHistory
    logs: NotRequired[dict[str, float]]


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


def check_state(path: pathlib.Path, state: dict[str, Any]) -> None:
    """Checks that the content of a checkpoint is the state of a run.

    Args:
        path: path of the checkpoint.
        state: its content.

    Raises:
        Exception: if it is not.
    """
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
    version, words, gauss = state["random"]["python"]
    random.Random().setstate((version, tuple(words), gauss))
    np.random.RandomState().set_state(state["random"]["numpy"])
    torch_states = [
        state["random"][n] for n in ("torch", "cuda") if n in state["random"]
    ]
    for value in keras.tree.flatten(torch_states):
        if not isinstance(value, np.ndarray) or value.dtype != "uint8":
            raise TypeError("a random state of PyTorch is not of bytes")


def check_logs(path: pathlib.Path, state: dict[str, Any]) -> None:
    """Checks the entries `"epoch"`, `"batch"` and `"logs"`; see `check_state`."""
    position = RunPosition(state["epoch"], state["batch"])
    if not all(type(number) is int for number in position):
        raise TypeError(f"its position is {position!r:.80}")
    if path.name != BEST and position != RunPosition.from_file_name(path.name):
        raise ValueError(f"it is at {position}, unlike its name")
    if not all(type(value) is float for value in state.get("logs", {}).values()):
        raise TypeError("`logs` are not numbers")


def check_variables(path: pathlib.Path, state: dict[str, Any]) -> None:
    """Checks the entry `"model"` of a checkpoint; see `check_state`."""
    for entry in state["model"]:
        keras.backend.standardize_dtype(entry["value"].dtype)
        if not isinstance(entry["name"], str):
            raise TypeError(f"a variable is {entry!r:.80}")


def save_variables(variables: Iterable[keras.Variable]) -> list[SavedVariable]:
    """Returns copies of variables.

    Processes that train together must call it together.

    Args:
        variables: Keras variables.

    Returns:
        List of the `"name"` and the `"value"`, a NumPy array, of each variable.
    """
    return [
        {"name": _name(variable), "value": whole_value(variable)}
        for variable in variables
    ]


def restore_variables(
    variables: Sequence[keras.Variable], saved: Sequence[SavedVariable], source: Any
) -> None:
    """Sets variables to saved values.

    Args:
        variables: Keras variables.
        saved: the result of `save_variables`.
        source: path of the checkpoint, for the error message.

    Raises:
        ValueError: if names or shapes differ.
    """
    check_same(variables, saved, source)
    for variable, entry in zip(variables, saved, strict=True):
        variable.assign(entry["value"])


def restore_weights(
    model: keras.Model, saved: Sequence[SavedVariable], source: Any
) -> None:
    """Sets the weights of a model to saved values, but not its random generators.

    Args:
        model: a built `keras.Model`.
        saved: the entry `"model"` of a checkpoint.
        source: path of the checkpoint, for the error message.

    Raises:
        ValueError: if names or shapes differ.
    """
    restore_variables(model.weights, without_random_states(saved), source)


def without_random_states(saved: Iterable[SavedVariable]) -> list[SavedVariable]:
    """Returns the saved variables that `Model.weights` has.

    Args:
        saved: the entry `"model"` of a checkpoint.
    """
    return [e for e in saved if not e["name"].endswith("seed_generator_state")]


def check_same(
    variables: Sequence[keras.Variable], saved: Sequence[SavedVariable], source: Any
) -> None:
    """Checks that saved values have the names and shapes of variables.

    Args:
        variables: Keras variables.
        saved: the result of `save_variables`.
        source: path of the checkpoint, for the error message.

    Raises:
        ValueError: if names or shapes differ. The message has the first difference.
    """
    ours = [f"{_name(variable)} {tuple(variable.shape)}" for variable in variables]
    theirs = [f"{entry['name']} {entry['value'].shape}" for entry in saved]
    for our, their in itertools.zip_longest(ours, theirs, fillvalue="nothing"):
        # On TensorFlow, `fit` builds an optimizer within one more name scope.
        if not (our.endswith(their) or their.endswith(our)):
            raise ValueError(
                "`folder` must hold checkpoints of the same model and optimizer; "
                f"received {source}, which has {their} in place of {our}. Use a "
                "separate folder for each run."
            )


def _name(variable: keras.Variable) -> str:
    """Returns the path without the numbers that Keras appends to repeated names."""
    return re.sub(r"_\d+", "", variable.path)


def all_finite(saved: Iterable[SavedVariable]) -> bool:
    """Returns whether saved values contain neither NaN nor infinity.

    Args:
        saved: the result of `save_variables`.

    Returns:
        bool.
    """
    return all(np.isfinite(entry["value"]).all() for entry in saved)


def build_metrics(model: keras.Model, batch: tuple[Any, ...]) -> None:
    """Builds the metrics of a compiled model.

    On TensorFlow, `fit` builds them in the first step, when it is too late to restore
    their values.

    Args:
        model: a compiled `keras.Model`.
        batch: a batch of the training data.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = model(x)
    model.compute_loss(x, y, y_pred, sample_weight, training=False)
    model.compute_metrics(x, y, y_pred, sample_weight)


def learning_rates(optimizer: keras.optimizers.Optimizer) -> list[float]:
    """Returns the learning rates that are numbers, not schedules.

    Args:
        optimizer: a Keras optimizer.

    Returns:
        List of at most one float; of several for a `MultiOptimizer`.
    """
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    parts = getattr(optimizer, "optimizers", [optimizer])
    rates = [v for each in parts for v in each.variables if v.name == "learning_rate"]
    return [float(ops.convert_to_numpy(rate)) for rate in rates]


def save_history(
    model: keras.Model, epoch: int | None = None, logs: dict[str, Any] | None = None
) -> SavedHistory:
    """Returns a copy of the history of a run.

    Args:
        model: a `keras.Model` that is being trained.
        epoch: int, 0-based number of an epoch that has ended, which `History` may not
            have yet; `None` = no further epoch.
        logs: dictionary of the logs of that epoch.

    Returns:
        The attributes of `keras.callbacks.History`.
    """
    epochs = [*model.history.epoch]
    history = {name: [*values] for name, values in model.history.history.items()}
    if epoch is not None and epoch not in epochs:
        epochs.append(epoch)
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(value)
    return {"epoch": epochs, "history": history}


def save_logs(logs: dict[str, Any] | None) -> dict[str, float]:
    """Returns the logs of an epoch that are numbers.

    Args:
        logs: the logs of Keras: numbers, scalar tensors and other values.
    """
    saved = {}
    for name, value in (logs or {}).items():
        if ops.is_tensor(value) or isinstance(value, keras.Variable):
            value = ops.convert_to_numpy(value)
        with contextlib.suppress(TypeError, ValueError):
            if np.ndim(value) == 0:
                saved[name] = float(value)
    return saved


def save_random_state() -> dict[str, Any]:
    """Returns the states of the global random generators.

    The seed generators of layers are variables of the model. Keras shuffles arrays
    with the global generators, and on PyTorch its `Dropout` without a seed uses that
    of PyTorch.

    Returns:
        Dictionary of the states of Python, NumPy and, if it is imported, PyTorch.
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state().numpy()
        on_devices = torch.cuda.is_initialized() and torch.cuda.get_rng_state_all()
        state["cuda"] = [each.numpy() for each in on_devices or ()]
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restores the states of the global random generators.

    Args:
        state: the result of `save_random_state`.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])
    if (torch := sys.modules.get("torch")) and "torch" in state:
        torch.set_rng_state(torch.from_numpy(state["torch"]))
        torch.cuda.set_rng_state_all([torch.from_numpy(s) for s in state["cuda"]])


def initial_seed() -> int | None:
    """Returns the seed of the global generator of PyTorch; `None` on other backends."""
    if keras.backend.backend() != "torch":
        return None
    return int(sys.modules["torch"].initial_seed())


def seed_epoch(seed: int | None, epoch: int) -> None:
    """Seeds the global generator of PyTorch, from which its `Dropout` draws.

    The iterators of the data draw from it as well, but not at the end of an epoch that
    is resumed.

    Args:
        seed: the result of `initial_seed`, of the run that is resumed.
        epoch: the epoch that begins.
    """
    if seed is not None:
        sys.modules["torch"].manual_seed((seed + epoch) % 2**63)
