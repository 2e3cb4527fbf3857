"""What a user asks a search for."""

from numbers import Integral
from typing import Any, NamedTuple

from keras_transformer.decoding import RelativeLength, Search


class Request(NamedTuple):
    """How a `generate` decodes; a new one is compiled."""

    search: Search
    max_length: int | RelativeLength | None
    min_length: int | RelativeLength


def check_request(request: Request, batch_size: int = 1) -> None:
    """Makes sure that what a user asks for makes sense.

    Args:
        request: what is asked for.
        batch_size: int, inputs decoded together.

    Raises:
        ValueError: if `search` is not a search, or a number is of another kind or out
            of its range.
    """
    search = request.search
    try:
        hash(request)
    except TypeError as error:
        raise ValueError(
            "`search` must be hashable, as what is compiled is kept by it: its rules "
            "and penalties frozen dataclasses, with tuples in the place of lists; "
            f"received `search={search!r}`."
        ) from error
    if isinstance(search, type) or not hasattr(search, "num_hypotheses"):
        raise ValueError(
            "`search` must be a search such as `GreedySearch()` or `BeamSearch()`; "
            f"received `search={search!r}`."
        )
    shortest: Any = request.min_length
    longest: Any = request.max_length
    _check_number("batch_size", batch_size, 1)
    if longest is not None:
        _check_number("max_length", longest, 1, RelativeLength)
    _check_number("min_length", shortest, 0, RelativeLength)
    are_ints = isinstance(shortest, Integral) and isinstance(longest, Integral)
    if are_ints and shortest > longest:
        raise ValueError(
            "`min_length` must be at most `max_length`; received "
            f"`min_length={shortest}`, `max_length={longest}`."
        )


def _check_number(name: str, number: Any, least: int, *others: type) -> None:
    if isinstance(number, others):
        return
    if not isinstance(number, Integral):
        kinds = " or ".join(["an int", *(f"`{kind.__name__}`" for kind in others)])
        raise ValueError(f"`{name}` must be {kinds}; received `{name}={number!r}`.")
    if number < least:
        raise ValueError(
            f"`{name}` must be at least {least}; received `{name}={number}`."
        )


def check_seed(seed: int | None) -> None:
    """Makes sure that a seed fits into 32 bits, which a compiled search takes.

    Args:
        seed: int, or `None` for one that is drawn.

    Raises:
        ValueError: if it does not.
    """
    if seed is None or isinstance(seed, Integral) and -(2**31) <= seed < 2**31:
        return
    raise ValueError(
        "`seed` must be an int from -2**31 to 2**31 - 1; received "
        f"`seed={seed!r}`. Take `seed % 2**31` of a larger one."
    )
