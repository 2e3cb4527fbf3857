"""Copies the state of a run out of Keras, and back into it."""

import copy
import itertools
import random
import re
import sys
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.keras_internals import callback_state

Saved = list[dict[str, Any]]


def save_variables(variables: list[Any]) -> Saved:
    """Copies variables.

    Args:
        variables: Keras variables.

    Returns:
        For each, a dictionary of its `"name"` and `"value"`, a NumPy array.
    """
    return [
        {"name": _name(variable), "value": ops.convert_to_numpy(variable)}
        for variable in variables
    ]


def restore_variables(variables: list[Any], saved: Saved, where: Any) -> None:
    """Sets variables to saved values.

    Args:
        variables: Keras variables.
        saved: what `save_variables` gave for variables of the same names and shapes.
        where: the file they are from, for the error message.

    Raises:
        ValueError: if names or shapes differ.
    """
    check_same(variables, saved, where)
    for variable, entry in zip(variables, saved, strict=True):
        variable.assign(entry["value"])


def check_same(variables: list[Any], saved: Saved, where: Any) -> None:
    """Checks that saved values belong to these variables.

    Args:
        variables: Keras variables.
        saved: what `save_variables` gave.
        where: the file they are from, for the error message.

    Raises:
        ValueError: if names or shapes differ; it names the first difference.
    """
    ours = [f"{_name(variable)} {tuple(variable.shape)}" for variable in variables]
    theirs = [f"{entry['name']} {entry['value'].shape}" for entry in saved]
    for our, their in itertools.zip_longest(ours, theirs, fillvalue="nothing"):
        # On TensorFlow, `fit` builds an optimizer within one more name scope.
        if not (our.endswith(their) or their.endswith(our)):
            raise ValueError(
                "`folder` must hold checkpoints of the same model and optimizer; "
                f"received {where}, which has {their} where there is {our} now. "
                "Give each run a folder of its own."
            )


def _name(variable: Any) -> str:
    """Returns the path without numbers, which depend on what was created before."""
    return re.sub(r"_\d+", "", variable.path)


def all_finite(saved: Saved) -> bool:
    """Tells whether saved values are free of NaN and infinity.

    Args:
        saved: what `save_variables` gave.

    Returns:
        A bool.
    """
    return all(np.isfinite(entry["value"]).all() for entry in saved)


def build_metrics(model: keras.Model, batch: Any) -> None:
    """Makes a compiled model create its metrics' variables.

    TensorFlow's `fit` creates them with the first step, too late to set them.

    Args:
        model: a compiled model.
        batch: a batch of its data.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = model(x)
    model.compute_loss(x, y, y_pred, sample_weight, training=False)
    model.compute_metrics(x, y, y_pred, sample_weight)


def save_callbacks(callbacks: list[Any]) -> list[dict[str, Any]]:
    """Copies what callbacks remember of the run so far.

    Args:
        callbacks: Keras callbacks.

    Returns:
        For each that remembers something, its class and its attributes.
    """
    return [
        {
            "class": type(callback).__name__,
            "attributes": {name: getattr(callback, name) for name in names},
        }
        for callback in callbacks
        if (names := remembered(callback))
    ]


def restore_callbacks(callbacks: list[Any], saved: list[dict[str, Any]]) -> None:
    """Restores what callbacks remembered.

    The n-th callback of a class gets the attributes of the n-th of that class; one
    that is new in the list stays as it is.

    Args:
        callbacks: Keras callbacks.
        saved: what `save_callbacks` gave.
    """
    by_class: dict[str, list[dict[str, Any]]] = {}
    for entry in saved:
        by_class.setdefault(entry["class"], []).append(entry["attributes"])
    for callback in filter(remembered, callbacks):
        if waiting := by_class.get(type(callback).__name__):
            vars(callback).update(copy.deepcopy(waiting.pop(0)))


def remembered(callback: Any) -> tuple[str, ...]:
    """Lists the attributes in which a callback remembers something of the run.

    Args:
        callback: a Keras callback.

    Returns:
        Names; none for most callbacks.
    """
    own = getattr(callback, "checkpointed_attributes", ())
    return callback_state(callback) or own


def swapping(callbacks: list[Any]) -> list[Any]:
    """Finds the callbacks that leave moving averages in the model.

    Args:
        callbacks: Keras callbacks.

    Returns:
        Those that are `SwapEMAWeights(swap_on_epoch=True)`.
    """
    return [
        callback
        for callback in callbacks
        if isinstance(callback, keras.callbacks.SwapEMAWeights)
        and callback.swap_on_epoch
    ]


def learning_rates(optimizer: Any) -> list[float]:
    """Reads the learning rates that are numbers, rather than schedules.

    Args:
        optimizer: a Keras optimizer.

    Returns:
        One number, none, or those of the parts of a `MultiOptimizer`.
    """
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    parts = getattr(optimizer, "optimizers", [optimizer])
    rates = [v for each in parts for v in each.variables if v.name == "learning_rate"]
    return [float(ops.convert_to_numpy(rate)) for rate in rates]


def stopped_early(callbacks: list[Any]) -> bool:
    """Tells whether `EarlyStopping` has ended the run and would not go on.

    Args:
        callbacks: Keras callbacks.

    Returns:
        A bool.
    """
    return any(
        isinstance(callback, keras.callbacks.EarlyStopping)
        and callback.stopped_epoch > 0
        and callback.wait >= callback.patience
        for callback in callbacks
    )


def save_history(
    model: keras.Model, epoch: int | None = None, logs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Copies the history of a run.

    Args:
        model: a model that is being trained.
        epoch: int, an epoch that has ended and may not be in the history yet.
        logs: the logs of that epoch.

    Returns:
        The two attributes of `keras.callbacks.History`.
    """
    epochs = [*model.history.epoch]
    history = {name: [*values] for name, values in model.history.history.items()}
    if epoch is not None and epoch not in epochs:
        epochs.append(epoch)
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(value)
    return {"epoch": epochs, "history": history}


def save_random_state() -> dict[str, Any]:
    """Copies the states of the process's own random generators.

    Those of the layers are variables of the model. But Keras shuffles arrays with
    these, and on torch its `Dropout` without a seed draws from torch's.

    Returns:
        The states of Python, NumPy and, where it is loaded, PyTorch.
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
    """Restores the states of the process's own random generators.

    Args:
        state: what `save_random_state` gave.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])
    if (torch := sys.modules.get("torch")) and "torch" in state:
        torch.set_rng_state(torch.from_numpy(state["torch"]))
        torch.cuda.set_rng_state_all([torch.from_numpy(s) for s in state["cuda"]])
