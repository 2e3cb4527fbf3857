"""The arguments of `generate` that a compiled search depends on, and their checks."""

from numbers import Integral
from typing import NamedTuple

import numpy as np

from keras_transformer.decoding import OutputLength, RelativeLength, Search


class Request(NamedTuple):
    """The arguments of `generate` that a compiled search depends on."""

    search: Search
    max_length: OutputLength | None = None
    min_length: OutputLength = 0


def check_request(request: Request, batch_size: int = 1) -> None:
    """Checks the arguments of `generate`."""
    search = request.search
    try:
        hash(request)
    except TypeError as error:
        raise ValueError(
            "`search` must be hashable, since compiled searches are cached by it: use "
            "frozen dataclasses with tuples instead of lists as logits processors and "
            f"length penalties; received `search={search!r}`."
        ) from error
    if isinstance(search, type) or not hasattr(search, "num_hypotheses"):
        raise ValueError(
            "`search` must be a search such as `GreedySearch()` or `BeamSearch()`; "
            f"received `search={search!r}`."
        )
    shortest, longest = request.min_length, request.max_length
    _check_number("batch_size", batch_size, 1)
    if longest is not None:
        _check_number("max_length", longest, 1, RelativeLength)
    _check_number("min_length", shortest, 0, RelativeLength)
    are_ints = isinstance(shortest, Integral) and isinstance(longest, Integral)
    if are_ints and int(shortest) > int(longest):  # type: ignore[arg-type]
        raise ValueError(
            "`min_length` must be at most `max_length`; received "
            f"`min_length={shortest}`, `max_length={longest}`."
        )


def _check_number(name: str, number: object, least: int, *others: type) -> None:
    if isinstance(number, others):
        return
    if not isinstance(number, Integral):
        kinds = " or ".join(["an int", *(f"`{kind.__name__}`" for kind in others)])
        raise ValueError(f"`{name}` must be {kinds}; received `{name}={number!r}`.")
    if int(number) < least:
        raise ValueError(
            f"`{name}` must be at least {least}; received `{name}={number}`."
        )


def check_seed(seed: int | None) -> None:
    """Checks that a seed has 32 bits, as a compiled search requires."""
    if seed is None or isinstance(seed, Integral) and -(2**31) <= seed < 2**31:
        return
    raise ValueError(
        "`seed` must be an int from -2**31 to 2**31 - 1; received "
        f"`seed={seed!r}`. Pass `seed % 2**31` instead of a larger seed."
    )


def check_probabilities(scores: np.ndarray) -> None:
    """Raises `FloatingPointError` if a score is NaN: logits had no probabilities."""
    broken = np.flatnonzero(np.isnan(scores).any(axis=1))
    if len(broken):
        raise FloatingPointError(
            f"The model must give finite logits; for {len(broken)} of {len(scores)} "
            f"inputs, the first in row {broken[0]}, one is NaN or infinite. Check that "
            "the weights of the model are finite, and compute in float32 if they are."
        )


def seed_or_random(seed: int | None) -> np.int32:
    """Returns the seed, or one that NumPy draws if it is `None`."""
    return np.int32(np.random.randint(2**31 - 1) if seed is None else seed)
