"""What every search shares: the step contract, the inputs, the result, the loop."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from keras import ops

# The part of a batch that goes on by itself when the rest of it is done.
LAST_PART = 4

Step = Callable[[Any, Any, Any], tuple[Any, Any]]
Reorder = Callable[[Any, Any], Any]
Extend = Callable[[Any, Any], Any]
Take = Callable[[Any, Any], Any]


class Model(NamedTuple):
    """All that a search knows of a model.

    Attributes:
        step: `step(token_ids, index, state) -> (logits, state)`, one step of the
            model: the newest tokens int32 `(batch, num_beams)`, their position
            (int32 scalar tensor, the start token's is 0), and the model's state;
            returns the next tokens' logits `(batch, num_beams, vocabulary_size)`.
        reorder: `reorder(state, parents) -> state`, lets beam `i` go on from what
            was beam `parents[:, i]`; `parents` int32 `(batch, num_beams)`.
        extend: `extend(state, length) -> state`, makes room for that many steps.
        take: `take(state, rows) -> state`, that of some of the sentences; `rows` int32
            `(count,)`.
        start_token_id: int, the token every hypothesis starts from.
        end_token_id: int, the token that ends a hypothesis.
        pad_token_id: int, fills the result; never chosen.
    """

    step: Step
    reorder: Reorder
    extend: Extend
    take: Take
    start_token_id: int
    end_token_id: int
    pad_token_id: int


class Sentences(NamedTuple):
    """What a search is asked for, sentence by sentence.

    Attributes:
        limits: int32 tensor `(batch,)`, the greatest length, the end token
            included: the token at the limit is always the end token.
        min_lengths: int32 tensor `(batch,)`, the least length, the end token
            included; where it is above the limit, the limit holds.
        prefixes: int32 tensor `(batch, prefix_length)`, the first tokens of every
            hypothesis, then padding.
        source_mask: boolean tensor `(batch, source_length)`, the source's real
            tokens.
        keys: int32 tensor `(batch,)`, what tells the random numbers of a sentence
            from those of another.
    """

    limits: Any
    min_lengths: Any
    prefixes: Any
    source_mask: Any
    keys: Any


class SearchResult(NamedTuple):
    """The hypotheses of a search, best first.

    Attributes:
        token_ids: int32 tensor `(batch, num_hypotheses, max_length)`, each
            hypothesis up to and with its end token, then padding.
        lengths: int32 tensor `(batch, num_hypotheses)`, tokens in each, the end
            token included, the start token not; 0 where there are fewer
            hypotheses than asked for.
        scores: float32 tensor `(batch, num_hypotheses)`, sum of the
            log-probabilities of those tokens, divided by the length penalty;
            `-inf` where there is no hypothesis.
    """

    token_ids: Any
    lengths: Any
    scores: Any


class Progress(Protocol):
    """The state of a search between two steps: a tuple of tensors, with more in it.

    `index` comes first and the model's state last; the first axis of all others is the
    batch.
    """

    index: Any  # int32 (), position of the next token
    done: Any  # bool (batch, ...), what is finished
    state: Any  # the model's


class Search(Protocol):
    """A way to find the output of a model that is known only by its step."""

    @property
    def num_beams(self) -> int:
        """How many hypotheses of a sentence are kept at each step."""
        ...

    @property
    def num_hypotheses(self) -> int:
        """How many finished hypotheses of a sentence the result holds."""
        ...

    @property
    def needs_attention(self) -> bool:
        """Whether `state["attention"]` must be there.

        It is float `(batch, num_beams, source_length)`: what the newest tokens
        attended to.
        """
        ...

    def start(
        self, model: Model, sentences: Sentences, state: Any, max_length: Any
    ) -> Any:
        """Makes the `Progress` before the first step.

        Args:
            model: the model.
            sentences: what is asked for.
            state: a nest of tensors, the model's state before the first step.
            max_length: int or int scalar tensor, at least the greatest limit.
        """
        ...

    def advance(self, model: Model, sentences: Sentences, progress: Any) -> Any:
        """Makes one step; returns the next `Progress`."""
        ...

    def result(self, model: Model, progress: Any) -> SearchResult:
        """Returns the hypotheses found so far."""
        ...


def run(
    search: Search,
    model: Model,
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
    model: Model,
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

    def advance(*values: Any) -> Any:
        return search.advance(model, sentences, kind(*values))

    return kind(*ops.while_loop(goes_on, advance, progress))


def _finish(
    search: Search, model: Model, sentences: Sentences, last: Any, few: Any, most: Any
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
