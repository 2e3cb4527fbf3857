"""Checks of arguments: one function for each kind of value.

Each takes the arguments by name, and its error names the argument, what it must be and
what it was.
"""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

_LEAST_FLOAT32 = 2.0**-126  # backends may round lower numbers to 0
_GREATEST_FLOAT32 = 2.0**128 - 2.0**104


def check_ints(
    least: int, optional: bool = False, remedy: str = "", **arguments: Any
) -> None:
    """Checks that each argument is an int that is not too small.

    Args:
        least: int, the smallest allowed value.
        optional: bool, whether `None` is allowed as well.
        remedy: str, what to do, the end of the error message.
        **arguments: arguments by name.

    Raises:
        ValueError: if an argument is not an int or is below `least`.
    """
    for name, number in arguments.items():
        if optional and number is None:
            continue
        if not isinstance(number, Integral) or int(number) < least:
            raise ValueError(  # Keras's message begins with "argument" too.
                f"argument `{name}` must be an int of at least {least}; received "
                f"`{name}={number!r}`.{_sentence(remedy)}"
            )


def check_numbers(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
    remedy: str = "",
    **arguments: Any,
) -> None:
    """Checks that each argument is a finite number in an interval.

    Args:
        least: float, the smallest allowed value.
        most: float, the largest allowed value.
        above: float, a bound that is too small itself.
        below: float, a bound that is too large itself.
        optional: bool, whether `None` is allowed as well.
        remedy: str, what to do, the end of the error message.
        **arguments: arguments by name.

    Raises:
        ValueError: if an argument is not a number, is not finite, or is outside of the
            interval.

    Example:

    >>> check_numbers(0, below=1, momentum=1)
    Traceback (most recent call last):
        ...
    ValueError: `momentum` must be a finite number of at least 0 and below 1; received \
`momentum=1`.
    """
    bounds = {
        f"of at least {least}": least,
        f"above {above}": above,
        f"of at most {most}": most,
        f"below {below}": below,
    }
    expected = " and ".join(text for text, x in bounds.items() if math.isfinite(x))
    for name, number in arguments.items():
        if optional and number is None:
            continue
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        fits = is_number and -math.inf < number < math.inf  # of any int
        if not (fits and least <= number <= most and above < number < below):
            raise ValueError(
                f"`{name}` must be a finite number {expected}".rstrip()
                + f"; received `{name}={number!r}`.{_sentence(remedy)}"
            )


def check_one_of(
    choices: Collection[Any], optional: bool = False, remedy: str = "", **arguments: Any
) -> None:
    """Checks that each argument is one of several values.

    Args:
        choices: the allowed values.
        optional: bool, whether `None` is allowed as well.
        remedy: str, what to do, the end of the error message.
        **arguments: arguments by name.

    Raises:
        ValueError: if an argument is none of them.
    """
    for name, value in arguments.items():
        if optional and value is None:
            continue
        if not any(type(value) is type(each) and value == each for each in choices):
            *first, last = [repr(each) for each in choices]
            expected = f"{', '.join(first)} or {last}" if first else last
            raise ValueError(
                f"`{name}` must be {expected}; received `{name}={value!r}`."
                f"{_sentence(remedy)}"
            )


def _sentence(remedy: str) -> str:
    return f" {remedy}" if remedy else ""


def check_rates(**rates: Any) -> None:
    """Checks that each argument is a dropout rate.

    Args:
        **rates: arguments by name.

    Raises:
        ValueError: if an argument is not a number in [0, 1).
    """
    for name, rate in rates.items():
        if not isinstance(rate, Real) or not 0.0 <= float(rate) < 1.0:
            raise ValueError(f"`{name}` must be in [0, 1); received `{name}={rate!r}`.")


def check_positive(**numbers: Any) -> None:
    """Checks that each argument is finite and above 0, in float32 as well.

    Args:
        **numbers: arguments by name.

    Raises:
        ValueError: if an argument is not a number, is not finite, or is not above 0 as
            a normal float32.
    """
    for name, number in numbers.items():
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if not is_number or not _LEAST_FLOAT32 <= number <= _GREATEST_FLOAT32:
            raise ValueError(
                f"`{name}` must be a finite number above 0 in float32; "
                f"received `{name}={number!r}`."
            )


def check_unicode(text: str, argument: str, where: str) -> None:
    """Checks that a text can be encoded in UTF-8.

    Args:
        text: the text.
        argument: str, name of the argument, for the error message.
        where: str, place of the text in the argument, such as `"row 3"`.

    Raises:
        ValueError: if the text has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, place = ord(text[error.start]), error.start
        raise ValueError(
            f"`{argument}` must be valid Unicode; received the lone surrogate "
            f"U+{code:04X} at position {place} of the text in {where}. Replace it, "
            'for example with `text.encode("utf-8", "replace").decode()`.'
        ) from error


def normalization_rule(normalization: str, lowercase: bool) -> str:
    """Returns the name that SentencePiece has for a normalisation.

    Args:
        normalization: `"nmt_nfkc"`, `"nfkc"` or `"identity"`.
        lowercase: whether letter case is folded.

    Raises:
        ValueError: if there is no such normalisation.
    """
    if normalization not in ("nmt_nfkc", "nfkc", "identity"):
        raise ValueError(
            '`normalization` must be "nmt_nfkc", "nfkc" or "identity"; received '
            f"`normalization={normalization!r}`. `lowercase=True` folds letter case."
        )
    if not lowercase:
        return normalization
    if normalization == "identity":
        raise ValueError(
            '`normalization` must be "nmt_nfkc" or "nfkc" with `lowercase=True`; '
            'received `normalization="identity"`. Lower-case the texts before training.'
        )
    return f"{normalization}_cf"


def check_character_coverage(character_coverage: float) -> None:
    """Checks the share of the characters of a text that a vocabulary covers.

    Args:
        character_coverage: float.

    Raises:
        ValueError: if it is not from 0.98 to 1.
    """
    if not 0.98 <= character_coverage <= 1:
        raise ValueError(
            "`character_coverage` must be from 0.98 to 1; received "
            f"`character_coverage={character_coverage}`. 0.9995 suits scripts of "
            "thousands of characters, 1 all others."
        )
