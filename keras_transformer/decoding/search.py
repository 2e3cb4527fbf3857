"""What every search shares: the step contract, the inputs, the result."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class StepModel(NamedTuple):
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

    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    reorder: Callable[[Any, Any], Any]
    extend: Callable[[Any, Any], Any]
    take: Callable[[Any, Any], Any]
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
        self, model: StepModel, sentences: Sentences, state: Any, max_length: Any
    ) -> Any:
        """Makes the `Progress` before the first step.

        Args:
            model: the model.
            sentences: what is asked for.
            state: a nest of tensors, the model's state before the first step.
            max_length: int or int scalar tensor, at least the greatest limit.
        """
        ...

    def advance(self, model: StepModel, sentences: Sentences, progress: Any) -> Any:
        """Makes one step; returns the next `Progress`."""
        ...

    def result(self, model: StepModel, progress: Any) -> SearchResult:
        """Returns the hypotheses found so far."""
        ...
