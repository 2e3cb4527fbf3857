"""Deprecated names of version 0.1.0, which the next version removes."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_transformer.decoding.decoding_model import ModelState
from keras_transformer.decoding.loop import run_search
from keras_transformer.decoding.search import Search, SearchInputs, SearchResult
from keras_transformer.types import Size, Tensor, TokenIds

UNLIMITED = 2**31 - 1  # steps; the limits of the sequences end the search


class StepModel(NamedTuple):
    """A `DecodingModel` made of functions.

    Attributes:
        step: `step(token_ids, index, state) -> (logits, state)`.
        reorder: `reorder(state, parents) -> state`.
        extend: `extend(state, max_length) -> state`.
        take: `take(state, rows) -> state`.
        start_token_id: int.
        end_token_id: int.
        pad_token_id: int.
    """

    step: Callable[..., Any]
    reorder: Callable[..., ModelState]
    extend: Callable[..., ModelState]
    take: Callable[..., ModelState]
    start_token_id: int
    end_token_id: int
    pad_token_id: int

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: ModelState
    ) -> tuple[Tensor, ModelState]:
        """Calls `step`."""
        logits, state = self.step(token_ids, index, state)
        return logits, state

    def prepare_state(self, state: ModelState) -> ModelState:
        """Returns the state."""
        return state

    def reorder_state(self, state: ModelState, parents: Tensor) -> ModelState:
        """Calls `reorder`."""
        return self.reorder(state, parents)

    def extend_state(self, state: ModelState, max_length: Size) -> ModelState:
        """Calls `extend`."""
        return self.extend(state, max_length)

    def take_state(self, state: ModelState, rows: Tensor) -> ModelState:
        """Calls `take`."""
        return self.take(state, rows)


def run(
    search: Search,
    model: Any,
    sentences: SearchInputs,
    first: Any,
    room: Size | None = None,
    most: Size | None = None,
) -> SearchResult:
    """Continues a search from the state of `search.start`; see `run_search`.

    Args:
        search: the search.
        model: a `DecodingModel`.
        sentences: the constraints.
        first: the state before the first step.
        room: int or int32 scalar tensor, number of steps that the state of the model
            has room for.
        most: int or int32 scalar tensor, maximum number of steps.

    Returns:
        A `SearchResult`.
    """
    started: Any = _Started(search, first)
    max_length = UNLIMITED if most is None else most
    return run_search(started, model, sentences, first.state, max_length, room)


class _Started:
    """A search that begins with a given state."""

    def __init__(self, search: Search, first: Any):
        self.advance = search.advance
        self.result = search.result
        self._first = first

    def start(self, *arguments: Any) -> Any:
        """Returns the state."""
        return self._first


RENAMED = {
    "Sentences": (SearchInputs, "SearchInputs"),
    "StepModel": (StepModel, "DecodingModel"),
    "run": (run, "run_search"),
}


def renamed(name: str) -> Any:
    """Returns the object of a deprecated name, with a warning.

    Args:
        name: str, a key of `RENAMED`.

    Returns:
        The object.
    """
    value, new_name = RENAMED[name]
    warnings.warn(
        f"`keras_transformer.decoding.{name}` is deprecated and will be removed in the "
        f"next version. Use `{new_name}` instead.",
        FutureWarning,
        stacklevel=3,
    )
    return value
