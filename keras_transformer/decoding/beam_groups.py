"""Groups of beams that avoid each other's tokens (diverse beam search)."""

import math
from collections.abc import Callable
from numbers import Real

from keras import ops

from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.beam_state import BeamState, Candidates
from keras_transformer.decoding.top_candidates import top_candidates
from keras_transformer.types import Mask, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints

PER_GROUP = ("done", "num_finished", "is_broken")  # (batch, num_groups) between steps


def check_groups(
    num_beams: int, num_beam_groups: int, diversity_penalty: float
) -> None:
    """Checks the options of groups of beams; see `BeamSearch`."""
    check_ints(1, num_beam_groups=num_beam_groups)
    groups, penalty = num_beam_groups, diversity_penalty
    if num_beams % groups:
        raise ValueError(
            "`num_beam_groups` must be a divisor of `num_beams`; received "
            f"`num_beam_groups={groups}`, `num_beams={num_beams}`."
        )
    is_positive = isinstance(penalty, Real) and 0 < penalty < math.inf
    if (groups > 1 and not is_positive) or (groups == 1 and penalty != 0):
        raise ValueError(
            "`diversity_penalty` must be a positive number for several groups of "
            f"beams, and 0 for one; received `diversity_penalty={penalty!r}`, "
            f"`num_beam_groups={groups}`."
        )


def split_groups(beams: BeamState, num_groups: int) -> BeamState:
    """Makes each group of beams a row of the batch; the state of the model stays."""
    if num_groups == 1:
        return beams

    def split(name: str, x: Tensor) -> Tensor:
        batch, count, *rest = ops.shape(x)
        parts = [] if name in PER_GROUP else [count // num_groups]
        return ops.reshape(x, (batch * num_groups, *parts, *rest))

    return _map_fields(split, beams)


def join_groups(beams: BeamState, num_groups: int) -> BeamState:
    """Returns the state of all groups from their rows; reverses `split_groups`."""
    if num_groups == 1:
        return beams

    def join(name: str, x: Tensor) -> Tensor:
        rows, *rest = ops.shape(x)
        parts = [num_groups]
        if name not in PER_GROUP:
            count, *rest = rest
            parts = [num_groups * count]
        return ops.reshape(x, (rows // num_groups, *parts, *rest))

    return _map_fields(join, beams)


def join_parents(parents: Tensor, num_groups: int) -> Tensor:
    """Converts the numbers of parents in their groups to those among all beams.

    `(batch * num_groups, beams_of_group)` becomes `(batch, num_beams)`, int32.
    """
    if num_groups == 1:
        return parents
    rows, beams = ops.shape(parents)
    first = ops.arange(num_groups, dtype="int32")[:, None] * beams
    parents = ops.reshape(parents, (rows // num_groups, num_groups, beams)) + first
    return ops.reshape(parents, (rows // num_groups, num_groups * beams))


def group_candidates(
    rows: BeamState,  # a row for each group
    logits: Tensor,  # float32 (batch, num_beams, vocabulary_size)
    normalizer: Tensor,  # float32 (batch, num_beams, 1)
    is_last: Mask,  # bool (batch, 1), whether every hypothesis ends
    end_token_id: int,
    num_groups: int,
    diversity_penalty: float,
) -> Candidates:
    """Returns the best `2 * beams_of_group` continuations of each group.

    The groups choose one after the other. A token loses `diversity_penalty` for each
    beam of the earlier groups that continues with it in this step. The penalty affects
    the choice, not the log-probabilities.
    """
    batch, num_beams, size = ops.shape(logits)
    beams = num_beams // num_groups
    log_probs = ops.reshape(rows.log_probs, (batch, num_beams))
    offsets = log_probs - normalizer[:, :, 0]
    open_groups = ops.logical_not(ops.reshape(rows.done, (batch, num_groups)))
    uses = ops.zeros((batch, size), "float32")
    groups = []
    for group in range(num_groups):
        own = slice(group * beams, (group + 1) * beams)
        penalty = diversity_penalty * uses
        scores, parents, tokens = top_candidates(
            offsets[:, own],
            logits[:, own] - penalty[:, None],
            min(2 * beams, beams * size),
        )
        ended = ops.logical_or(ops.equal(tokens, end_token_id), is_last)
        # A large penalty, added to the scores, would leave few bits of them.
        own_log_probs = _log_probs(offsets[:, own], logits[:, own], parents, tokens)
        own_log_probs = ops.where(scores > -float("inf"), own_log_probs, -float("inf"))
        groups.append(Candidates(scores, own_log_probs, parents, tokens, ended))
        kept, best = top_k(ops.where(ended, -float("inf"), scores), beams)
        counts = ops.logical_and(kept > -float("inf"), open_groups[:, group, None])
        chosen = ops.one_hot(ops.take_along_axis(tokens, best, axis=1), size)
        uses = uses + ops.sum(chosen * ops.cast(counts, "float32")[:, :, None], axis=1)

    def as_rows(*parts: Tensor) -> Tensor:
        stacked = ops.stack(parts, axis=1)
        return ops.reshape(stacked, (batch * num_groups, ops.shape(stacked)[2]))

    return Candidates(*map(as_rows, *groups))


def _log_probs(
    offsets: Tensor, logits: Tensor, parents: Tensor, tokens: TokenIds
) -> Tensor:
    """Returns the log-probabilities of candidates, all `(batch, candidates)`."""
    batch, beams, size = ops.shape(logits)
    flat = ops.reshape(logits, (batch, beams * size))
    chosen = ops.take_along_axis(flat, parents * size + tokens, axis=1)
    return chosen + ops.take_along_axis(offsets, parents, axis=1)


def _map_fields(
    function: Callable[[str, Tensor], Tensor], beams: BeamState
) -> BeamState:
    """Applies a function to the fields other than the index and the model's state."""
    fields = beams._asdict().items()
    same = ("index", "state")
    return beams._replace(**{n: function(n, x) for n, x in fields if n not in same})
