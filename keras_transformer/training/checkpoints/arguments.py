"""Checks of what `Checkpoints` is given, and of where it stands in `fit`."""

from typing import Any

import keras

from keras_transformer.backend.keras_internals import find_callback_list
from keras_transformer.training.checkpoints import run_state, storage


def check_data(data: Any, save_every: int | None) -> None:
    """Raises a `ValueError` if data are missing, or have no positions."""
    if data is None and save_every is not None:
        raise ValueError(
            "`data` must be given with `save_every`, or a run cannot resume in the "
            "middle of an epoch; received `data=None` and `save_every={save_every}`."
        )
    if data is not None and not hasattr(data, "restore"):
        raise ValueError(
            "`data` must be a `ParallelDataset`, whose `dataset` goes to `fit`; "
            f"received `data={data!r}`."
        )


def check_steps(data: Any, steps: int | None) -> None:
    """Raises a `ValueError` if an epoch of `fit` is not one of the data."""
    if data is not None and steps != data.batches_per_epoch:
        raise ValueError(
            "`data` must be the `ParallelDataset` whose `dataset` is given to `fit`, "
            f"without `steps_per_epoch`; received `data` of {data.batches_per_epoch} "
            f"batches an epoch, where `fit` makes {steps} steps."
        )


def check_can_be_saved(callbacks: list[Any]) -> None:
    """Raises a `ValueError` if a callback remembers what a checkpoint cannot hold."""
    for callback in callbacks:
        for name in run_state.remembered(callback):
            value = getattr(callback, name, None)  # may come with the first epoch
            if not storage.can_be_saved(value):
                raise ValueError(
                    "`checkpointed_attributes` must be numbers, strings, arrays, or "
                    "lists or dictionaries of them with strings as keys; received "
                    f"`{type(callback).__name__}.{name}={value!r}`."
                )


def list_of(callback: keras.callbacks.Callback) -> Any:
    """Returns the list of all callbacks; raises a `ValueError` if there is none."""
    callback_list = find_callback_list(callback)
    if callback_list is not None:
        return callback_list
    raise ValueError(
        "`Checkpoints` must be one of the `callbacks` given to `fit`; received a call "
        "from elsewhere."
    )


def check_last(callback_list: Any, callback: keras.callbacks.Callback) -> Any:
    """Returns the list if all callbacks that remember something come before ours."""
    callbacks = callback_list.callbacks
    later = callbacks[callbacks.index(callback) + 1 :]
    late = [type(each).__name__ for each in later if run_state.remembered(each)]
    if late:
        raise ValueError(
            "`Checkpoints` must come after the callbacks that remember something of "
            f"the run; received {', '.join(late)} after it. Put it last."
        )
    return callback_list
