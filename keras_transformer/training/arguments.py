"""Checks of arguments that several objects of training have."""

from numbers import Integral
from typing import Any


def check_count(name: str, value: Any) -> None:
    """Checks that an argument counts something.

    Args:
        name: its name.
        value: its value.

    Raises:
        ValueError: if it is no integer of at least 1.
    """
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(
            f"`{name}` must be an integer of at least 1; received `{name}={value!r}`."
        )
