"""Checks of arguments that every part of the library has."""

import warnings
from numbers import Integral, Real
from typing import Any


def check_ints(least: int, optional: bool = False, **arguments: Any) -> None:
    """Checks that each argument is an int that is large enough.

    Args:
        least: the smallest int that will do.
        optional: whether `None` will do, too.
        **arguments: arguments by name.

    Raises:
        ValueError: if one is something else.
    """
    for name, number in arguments.items():
        if optional and number is None:
            continue
        if not isinstance(number, Integral) or int(number) < least:
            raise ValueError(
                f"argument `{name}` must be an int of at least {least}; received "
                f"`{name}={number!r}`."
            )


def check_rates(**rates: Any) -> None:
    """Checks that each argument is a rate of dropout.

    Args:
        **rates: arguments by name.

    Raises:
        ValueError: if one is not in [0, 1).
    """
    for name, rate in rates.items():
        if not isinstance(rate, Real) or not 0.0 <= float(rate) < 1.0:
            raise ValueError(f"`{name}` must be in [0, 1); received `{name}={rate!r}`.")


def renamed_argument(old_name: str, old: Any, new_name: str, new: Any) -> Any:
    """Returns the value of an argument that has a new name.

    Args:
        old_name: name of the deprecated argument.
        old: its value; `None` if it was not passed.
        new_name: name of the argument that replaces it.
        new: value of that argument.

    Returns:
        `old` if it was passed, `new` otherwise.

    Example:

    >>> renamed_argument("processors", None, "logits_processors", ())
    ()
    """
    if old is None:
        return new
    warnings.warn(
        f"`{old_name}` is deprecated and will be removed in the next version. Pass "
        f"`{new_name}` instead.",
        FutureWarning,
        stacklevel=4,
    )
    return old
