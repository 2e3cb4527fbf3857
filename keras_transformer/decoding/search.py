"""What every search shares: the step contract, the result, the scores."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from keras import ops

Step = Callable[[Any, Any, Any], tuple[Any, Any]]
Reorder = Callable[[Any, Any], Any]


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


class Search(Protocol):
    """A way to find the output of a model that is known only by its step.

    Args:
        step: `step(token_ids, index, state) -> (logits, state)`, one step of
            the model: the newest tokens int32 `(batch, num_beams)`, their
            position (int32 scalar tensor, the start token's is 0), and the
            model's state; returns the next tokens' logits
            `(batch, num_beams, vocabulary_size)`.
        reorder: `reorder(state, parents) -> state`, lets beam `i` go on from
            what was beam `parents[:, i]`; `parents` int32 `(batch, num_beams)`.
        state: a nest of tensors, the model's state before the first step.
        limits: int32 tensor `(batch,)`, each sentence's greatest length, the
            end token included: the token at the limit is always the end token.
        max_length: int or int scalar tensor, at least the greatest limit.
        start_token_id: int, the token every hypothesis starts from.
        end_token_id: int, the token that ends a hypothesis.
        pad_token_id: int, fills the result; never chosen.

    Returns:
        A `SearchResult`.
    """

    @property
    def num_beams(self) -> int:
        """How many hypotheses of a sentence are kept at each step."""
        ...

    @property
    def num_hypotheses(self) -> int:
        """How many finished hypotheses of a sentence the result holds."""
        ...

    def __call__(
        self,
        step: Step,
        reorder: Reorder,
        state: Any,
        limits: Any,
        max_length: Any,
        *,
        start_token_id: int,
        end_token_id: int,
        pad_token_id: int,
    ) -> SearchResult:
        """Searches."""
        ...


def length_penalty(length: Any, alpha: float) -> Any:
    """Computes `((5 + length) / 6) ** alpha`.

    Args:
        length: number or int tensor of any shape, tokens in the hypothesis.
        alpha: float; 0 = no penalty, larger values favour longer hypotheses.

    Returns:
        float32 tensor of the shape of `length`.

    Example:

    >>> float(length_penalty(7, alpha=1.0))
    2.0

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, alpha)


def restrict_logits(
    logits: Any, index: Any, limits: Any, end_token_id: int, pad_token_id: int
) -> Any:
    """Leaves only the tokens that may come next.

    Args:
        logits: float32 tensor `(batch, num_beams, vocabulary_size)`.
        index: int32 scalar tensor, position of the next token.
        limits: int32 tensor `(batch,)`, greatest length of each sentence.
        end_token_id: the only token allowed at the limit.
        pad_token_id: the token never allowed before it.

    Returns:
        `logits` with `-inf` for each token that may not come next.
    """
    token_ids = ops.arange(ops.shape(logits)[-1], dtype="int32")
    at_limit = (index + 1 >= limits)[:, None, None]
    blocked = ops.where(
        at_limit,
        ops.not_equal(token_ids, end_token_id),
        ops.equal(token_ids, pad_token_id),
    )
    return ops.where(blocked, -float("inf"), logits)
