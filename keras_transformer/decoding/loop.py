"""Runs a search to its end."""

from typing import Any

from keras import ops

from keras_transformer.backend.while_loop import while_loop
from keras_transformer.decoding.search import Search, SearchResult, Sentences, StepModel

# The part of a batch that goes on by itself when the rest of it is done.
LAST_PART = 4


def run(
    search: Search,
    model: StepModel,
    sentences: Sentences,
    first: Any,
    room: Any = None,
    most: Any = None,
) -> SearchResult:
    """Searches until every sentence is done.

    A step costs what the model's state has room for and what the batch has sentences,
    those that are done included; most sentences are done long before the last one is.
    So when there is no room left, or few of the sentences go on, they do so by
    themselves, with room for all steps.

    Args:
        search: the strategy.
        model: the model.
        sentences: what is asked for.
        first: the `Progress` before the first step, from `search.start`.
        room: int or int scalar tensor, the steps that the model's state has room for;
            `None` = as many as there can be.
        most: int or int scalar tensor, the steps that there can be; needed if there is
            a `room`.

    Returns:
        A `SearchResult`.
    """
    if room is None:
        last = _advance(search, model, sentences, first)
        return search.result(model, last)
    few = ops.shape(sentences.limits)[0] // LAST_PART
    last = _advance(search, model, sentences, first, room, few)
    return search.result(model, _finish(search, model, sentences, last, few, most))


def _advance(
    search: Search,
    model: StepModel,
    sentences: Sentences,
    progress: Any,
    room: Any = None,
    few: Any = 0,
) -> Any:
    """Makes steps while there is room and more than `few` sentences go on."""
    kind = type(progress)

    def goes_on(*values: Any) -> Any:
        now = kind(*values)
        many = ops.sum(ops.cast(_unfinished(now), "int32")) > few
        return many if room is None else ops.logical_and(many, now.index < room)

    def advance(sentences: Sentences, *values: Any) -> Any:
        return search.advance(model, sentences, kind(*values))

    return kind(*while_loop(goes_on, advance, tuple(progress), sentences))


def _finish(
    search: Search,
    model: StepModel,
    sentences: Sentences,
    last: Any,
    few: Any,
    most: Any,
) -> Any:
    """Lets the sentences that go on do so to their ends, `few` at a time."""
    kind = type(last)
    state, index = last.state, last.index
    few = max(few, 1) if isinstance(few, int) else ops.maximum(few, 1)

    def goes_on(*values: Any) -> Any:
        return ops.any(_unfinished(kind(*values, state)))

    def advance(*values: Any) -> Any:
        done = ops.logical_not(_unfinished(kind(*values, state)))
        rows = ops.argsort(ops.cast(done, "int32"))[:few]
        own = model.extend(model.take(state, rows), most)
        part = kind(
            index, *(ops.take(value, rows, axis=0) for value in values[1:]), own
        )
        asked = Sentences(*(ops.take(value, rows, axis=0) for value in sentences))
        found = _advance(search, model, asked, part)
        unfinished = _unfinished(part)  # the others only fill the part up
        return index, *(
            _put(value, rows, _where(unfinished, new, old))
            for value, new, old in zip(values[1:], found[1:-1], part[1:-1], strict=True)
        )

    return kind(*ops.while_loop(goes_on, advance, last[:-1]), state)


def _where(rows: Any, new: Any, old: Any) -> Any:
    """The rows of one tensor where it is so, and of another one elsewhere."""
    return ops.where(ops.reshape(rows, (-1, *(len(new.shape) - 1) * (1,))), new, old)


def _put(values: Any, rows: Any, new: Any) -> Any:
    """Writes rows into a tensor; TensorFlow cannot if there is nothing in them."""
    if 0 in values.shape:
        return values
    return ops.scatter_update(values, ops.expand_dims(rows, 1), new)


def _unfinished(progress: Any) -> Any:
    """Which sentences go on, bool `(batch,)`."""
    axes = tuple(range(1, len(progress.done.shape)))
    return ops.logical_not(ops.all(progress.done, axis=axes))
