"""The loop of a search."""

from collections.abc import Callable
from typing import TypeVar

from keras import ops

from keras_transformer.backend.compiling import while_loop
from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.decoding_model import (
    DecodingModel,
    ModelState,
    extend_steps,
    select_rows,
)
from keras_transformer.decoding.phrases import Phrases
from keras_transformer.decoding.search import (
    Search,
    SearchInputs,
    SearchResult,
    SearchState,
)
from keras_transformer.types import Mask, Size, Tensor

StateT = TypeVar("StateT", bound=SearchState)

# When at most 1 / FRACTION of a batch is unfinished, it continues in a smaller batch.
FRACTION = 4
# A smaller batch than this is not worth the compilation of a second loop.
SMALLEST_REST = 4


def run_search(
    search: Search[StateT],
    model: DecodingModel,
    inputs: SearchInputs,
    state: ModelState,
    max_length: Size,
    capacity: Size | None = None,
) -> SearchResult:
    """Searches until all sequences are finished, or for `max_length` steps.

    The cost of a step grows with the capacity of the model's state and with the size
    of the batch, finished sequences included, and most sequences finish long before
    the last one. When the capacity is used up, or a quarter of the batch is unfinished,
    the unfinished sequences continue in smaller batches with the full capacity.

    If there are phrases, the sequences are first searched without them. The hypotheses
    of this search that have all phrases are hypotheses of the result. The sequences
    that still lack phrases are searched again with their phrases.

    Args:
        search: the search.
        model: the model.
        inputs: the constraints.
        state: a nested structure of tensors, the state of the model before the first
            step.
        max_length: int or int32 scalar tensor, at least the largest limit.
        capacity: int or int32 scalar tensor, number of steps that `state` has room
            for; `None` = `max_length`.

    Returns:
        A `SearchResult`.

    Raises:
        ValueError: if there are phrases and the search is not a `BeamSearch`.
    """
    if inputs.has_phrases:
        check_finds_phrases(search)
    # A slice of the phrases has an unknown number of them in TensorFlow's graph.
    none = ops.zeros((ops.shape(inputs.limits)[0], 0, 0), "int32")
    free = inputs._replace(phrases=none)
    first = _run(search, model, free, state, max_length, capacity)
    if not inputs.has_phrases:
        return mark_truncated(first, model, inputs)
    pad, token_ids = model.pad_token_id, inputs.phrases
    found = first.scores > -float("inf")
    lacks = ops.logical_and(found, Phrases(token_ids, pad).lacked_by(first.token_ids))
    first = first._replace(scores=ops.where(lacks, -float("inf"), first.scores))
    is_lacking = ops.any(lacks, axis=1)[:, None, None]
    rest = inputs._replace(phrases=ops.where(is_lacking, token_ids, pad))
    second = _run(search, model, rest, state, max_length, capacity)
    return mark_truncated(first.merged(second, pad), model, inputs)


def _run(
    search: Search[StateT],
    model: DecodingModel,
    inputs: SearchInputs,
    state: ModelState,
    max_length: Size,
    capacity: Size | None,
) -> SearchResult:
    last = first_part(search, model, inputs, state, max_length, capacity)
    if capacity is not None and not _is_one_loop(inputs, max_length, capacity):
        last = run_rest(search, model, inputs, last, max_length, capacity)
    return search.result(model, last)


def first_part(
    search: Search[StateT],
    model: DecodingModel,
    inputs: SearchInputs,
    state: ModelState,
    max_length: Size,
    capacity: Size | None,
) -> StateT:
    """Searches until `run_rest` continues with few sequences or more capacity.

    It finishes most small batches, and compiles in half the time of `run_search`.
    """
    first = search.start(model, inputs, state, max_length)
    if capacity is None or _is_one_loop(inputs, max_length, capacity):
        return run_steps(search, model, inputs, first, max_length)
    return run_steps(search, model, inputs, first, capacity, _rest_size(inputs))


def run_steps(
    search: Search[StateT],
    model: DecodingModel,
    inputs: SearchInputs,
    first: StateT,
    steps: Size,
    count: Size = 0,
) -> StateT:
    """Runs up to `steps` steps while more than `count` sequences are unfinished."""
    state_class: Callable[..., StateT] = type(first)

    def continues(*fields: Tensor) -> Tensor:
        now = state_class(*fields)
        unfinished = int32_sum(_unfinished(now)) > count
        return ops.logical_and(unfinished, now.index < steps)

    def advance(inputs: SearchInputs, *fields: Tensor) -> StateT:
        return search.advance(model, inputs, state_class(*fields))

    return state_class(*while_loop(continues, advance, tuple(first), inputs))


def run_rest(
    search: Search[StateT],
    model: DecodingModel,
    inputs: SearchInputs,
    last: StateT,
    max_length: Size,
    capacity: Size,
) -> StateT:
    """Continues what the first part has left, a quarter of the batch at a time."""
    state_class: Callable[..., StateT] = type(last)
    *own, state = last
    index = last.index
    count = _rest_size(inputs)
    count = max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)

    def continues(*fields: Tensor) -> Tensor:
        return ops.any(_unfinished(state_class(*fields, state)))

    def advance(*fields: Tensor) -> tuple[Tensor, ...]:
        done = ops.logical_not(_unfinished(state_class(*fields, state)))
        rows = ops.argsort(ops.cast(done, "int32"))[:count]
        part_state = select_rows(model, state, rows)
        part_state = extend_steps(model, part_state, max_length - capacity)
        part = state_class(
            index, *(ops.take(field, rows, axis=0) for field in fields[1:]), part_state
        )
        part_inputs = SearchInputs(*(ops.take(x, rows, axis=0) for x in inputs))
        found = run_steps(search, model, part_inputs, part, max_length)
        found = found._replace(done=ops.ones_like(found.done))
        unfinished = _unfinished(part)  # finished sequences only fill the batch
        return index, *(
            _scatter(field, rows, _where(unfinished, new, old))
            for field, new, old in zip(
                fields[1:], tuple(found)[1:-1], tuple(part)[1:-1], strict=True
            )
        )

    return state_class(*ops.while_loop(continues, advance, tuple(own)), state)


def _rest_size(inputs: SearchInputs) -> Size:
    """Returns the number of unfinished sequences that continue in a smaller batch."""
    count: Size = ops.shape(inputs.limits)[0] // FRACTION
    return count


def _is_one_loop(inputs: SearchInputs, max_length: Size, capacity: Size) -> bool:
    """Returns whether the first part of a search is known to be all of it."""
    count = _rest_size(inputs)
    fits = isinstance(capacity, int) and capacity == max_length
    return fits and isinstance(count, int) and count < SMALLEST_REST


def _unfinished(search_state: SearchState) -> Mask:
    """Returns the unfinished sequences, boolean `(batch,)`."""
    axes = tuple(range(1, len(search_state.done.shape)))
    return ops.logical_not(ops.all(search_state.done, axis=axes))


def _where(rows: Mask, new: Tensor, old: Tensor) -> Tensor:
    """Selects rows of `new` where `rows` is `True`, and rows of `old` elsewhere."""
    return ops.where(ops.reshape(rows, (-1, *(len(new.shape) - 1) * (1,))), new, old)


def _scatter(values: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """Replaces rows of a tensor; TensorFlow cannot update an empty tensor."""
    if 0 in values.shape:
        return values
    return ops.scatter_update(values, ops.expand_dims(rows, 1), new)


def mark_truncated(
    result: SearchResult, model: DecodingModel, inputs: SearchInputs
) -> SearchResult:
    """Adds which hypotheses have reached the maximum length."""
    is_real = ops.any(inputs.source_mask, axis=1)[:, None]
    reached = ops.logical_and(is_real, result.lengths >= inputs.limits[:, None])
    if not getattr(model, "forces_end_token", True):
        last = ops.maximum(result.lengths - 1, 0)[:, :, None]
        last = ops.take_along_axis(result.token_ids, last, axis=2)[:, :, 0]
        reached = ops.logical_and(reached, ops.not_equal(last, model.end_token_id))
    return result._replace(truncated=reached)


def check_finds_phrases(search: Search) -> None:
    """Raises `ValueError` if a search does not take phrases."""
    if not isinstance(search, BeamSearch) or search.num_beam_groups > 1:
        raise ValueError(
            "`search` must be a `BeamSearch` with one group of beams to find phrases "
            f"(`constraints`); received `search={search!r}`."
        )
