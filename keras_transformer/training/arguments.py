"""Argument checks shared by the schedule and the callbacks."""

from numbers import Integral
from typing import Any


def check_count(name: str, value: Any) -> None:
    """Checks that an argument is a count.

    Args:
        name: its name.
        value: its value.

    Raises:
        ValueError: if it is not an integer of at least 1.
    """
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(
            f"`{name}` must be an integer of at least 1; received `{name}={value!r}`."
        )
