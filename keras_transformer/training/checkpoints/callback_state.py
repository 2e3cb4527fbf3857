"""State of callbacks: saving, restoring and validating it."""

import copy
from collections.abc import Iterable, Sequence
from typing import TypedDict

import keras

from keras_transformer.backend import keras_internals
from keras_transformer.training.checkpoints.storage import can_be_saved
from keras_transformer.types import Config

# The state of a callback: `"class"`, its name, and `"attributes"`.
SavedCallback = TypedDict("SavedCallback", {"class": str, "attributes": Config})


def attributes_to_save(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Returns the names of the attributes that are the state of a callback."""
    own = getattr(callback, "checkpointed_attributes", ())
    return keras_internals.callback_state(callback) or own


def check_callbacks(callbacks: object) -> list[keras.callbacks.Callback] | None:
    """Returns the argument `callbacks` of `Checkpoints` as a list, if it is one."""
    if callbacks is None:
        return None
    if not isinstance(callbacks, list | tuple) or not all(
        isinstance(each, keras.callbacks.Callback) for each in callbacks
    ):
        raise ValueError(
            "`callbacks` must be a list of the other callbacks of `fit`; received "
            f"`callbacks={callbacks!r}`."
        )
    return [*callbacks]


def check_can_be_saved(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Checks that a checkpoint can store the state of all callbacks."""
    for callback in callbacks:
        for name in attributes_to_save(callback):
            # Some attributes are not set before the first epoch.
            value = getattr(callback, name, None)
            if not can_be_saved(value):
                raise ValueError(
                    "`checkpointed_attributes` must be numbers, strings, arrays, or "
                    "lists or dictionaries of them with strings as keys; received "
                    f"`{type(callback).__name__}.{name}={value!r}`."
                )


def check_is_last(
    callback: keras.callbacks.Callback, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Checks that no callback with state comes after the given one."""
    later = callbacks[callbacks.index(callback) + 1 :]
    late = [type(each).__name__ for each in later if attributes_to_save(each)]
    if late:
        raise ValueError(
            "`Checkpoints` must come after all callbacks whose state it saves; "
            f"received {', '.join(late)} after it. Put `Checkpoints` last."
        )


def save_callbacks(
    callbacks: Iterable[keras.callbacks.Callback],
) -> list[SavedCallback]:
    """Returns the state of each callback that has one."""
    return [
        {
            "class": type(callback).__name__,
            "attributes": {name: getattr(callback, name) for name in names},
        }
        for callback in callbacks
        if (names := attributes_to_save(callback))
    ]


def restore_callbacks(
    callbacks: Iterable[keras.callbacks.Callback], saved: Iterable[SavedCallback]
) -> None:
    """Restores the state of callbacks.

    The n-th callback of a class gets the state of the n-th saved callback of that
    class. A callback without saved state does not change.
    """
    by_class: dict[str, list[Config]] = {}
    for entry in saved:
        by_class.setdefault(entry["class"], []).append(entry["attributes"])
    for callback in filter(attributes_to_save, callbacks):
        if attributes := by_class.get(type(callback).__name__):
            own = attributes_to_save(callback)
            values = copy.deepcopy(attributes.pop(0))
            vars(callback).update({n: v for n, v in values.items() if n in own})


def swap_callbacks(
    callbacks: Iterable[keras.callbacks.Callback],
) -> list[keras.callbacks.SwapEMAWeights]:
    """Returns the callbacks that leave moving averages in the model after an epoch."""
    return [
        callback
        for callback in callbacks
        if isinstance(callback, keras.callbacks.SwapEMAWeights)
        and callback.swap_on_epoch
    ]


def finalize_averages(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Sets the weights of the model to their averages, as the end of `fit` does."""
    for swap in swap_callbacks(callbacks):
        keras_internals.finalize_averages(swap)


def stopped_early(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Returns whether `EarlyStopping` has ended the run, by its present `patience`."""
    return any(
        isinstance(callback, keras.callbacks.EarlyStopping)
        and callback.stopped_epoch > 0
        and callback.wait >= callback.patience
        for callback in callbacks
    )
