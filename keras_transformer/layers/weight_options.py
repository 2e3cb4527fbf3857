"""Initializers, regularizers and constraints of weights, given as keyword arguments."""

from typing import Any

import keras

_KINDS = {
    "initializer": keras.initializers,
    "regularizer": keras.regularizers,
    "constraint": keras.constraints,
}


def get(**options: Any) -> dict[str, Any]:
    """Makes the objects that names and configurations stand for.

    Args:
        **options: anything Keras takes for a `kernel_initializer`,
            `bias_regularizer`, ….

    Returns:
        The same names, with an object each, or `None`.

    Raises:
        ValueError: if Keras knows no such object.
    """
    return {name: _kind(name).get(option) for name, option in options.items()}


def clone(**options: Any) -> dict[str, Any]:
    """Clones the initializers, as each projection needs its own.

    Args:
        **options: objects as from `get`.

    Returns:
        The same names. Initializers without a seed begin with other random numbers;
        regularizers and constraints are those that were given.
    """
    return {
        name: option.clone() if isinstance(option, keras.Initializer) else option
        for name, option in options.items()
    }


def serialize(**options: Any) -> dict[str, Any]:
    """Serializes the objects.

    Args:
        **options: objects as from `get`.

    Returns:
        The same names, with what `serialize` of their kind gives.
    """
    return {name: _kind(name).serialize(option) for name, option in options.items()}


def _kind(name: str) -> Any:
    return _KINDS[name.rpartition("_")[2]]
