"""The state of a beam search, and the continuations of a step."""

from typing import NamedTuple

from keras import ops

from keras_transformer.backend.slice_update import copy_with_slice
from keras_transformer.decoding.decoding_model import ModelState
from keras_transformer.types import Mask, Tensor, TokenIds


class BeamState(NamedTuple):
    """The state between two steps; the hypotheses of a sequence are best first."""

    index: Tensor  # type: ignore[assignment]  # int32 (), position of the next token
    done: Mask  # bool (batch,), the finished searches
    token_ids: TokenIds  # int32 (batch, num_beams, max_length), unfinished hypotheses
    log_probs: Tensor  # float32 (batch, num_beams), their log-probabilities
    tokens: TokenIds  # int32 (batch, num_beams), their newest tokens
    coverage: Tensor  # float32 (batch, num_beams, source_length), summed attention
    matched: Mask  # bool (batch, num_beams, phrases, phrase_length), see PhraseProgress
    occurrences: Tensor  # int32 (batch, num_beams, phrases), likewise
    finished_ids: TokenIds  # int32 (batch, num_hypotheses, max_length), best first
    finished_lengths: Tensor  # int32 (batch, num_hypotheses)
    finished_scores: Tensor  # float32 (batch, num_hypotheses), -inf = no hypothesis
    num_finished: Tensor  # int32 (batch,), number of finished hypotheses
    is_broken: Mask  # bool (batch,), whether logits had no probabilities
    state: ModelState


class Candidates(NamedTuple):
    """Continuations by one token, `(batch, candidates)`, in the order of the scores."""

    ranking_scores: Tensor  # float32, highest first; -inf = no candidate
    log_probs: Tensor  # float32, of the whole hypothesis
    parents: Tensor  # int32, the continued beams
    tokens: TokenIds  # int32, the new tokens
    ended: Mask  # bool, whether the hypothesis ends


def end_broken(beams: BeamState, normalizer: Tensor) -> BeamState:
    """Sets the probability of hypotheses to 0 if the normalizer is NaN or infinite."""
    normalizer = ops.reshape(normalizer, ops.shape(beams.log_probs))
    is_broken = ops.logical_not(ops.isfinite(normalizer))
    is_alive = ops.logical_and(
        beams.log_probs > -float("inf"), ops.logical_not(beams.done)[:, None]
    )
    counts = ops.any(ops.logical_and(is_broken, is_alive), axis=1)
    return beams._replace(
        log_probs=ops.where(is_broken, -float("inf"), beams.log_probs),
        is_broken=ops.logical_or(beams.is_broken, counts),
    )


def append(token_ids: TokenIds, candidates: Candidates, index: Tensor) -> TokenIds:
    """Appends the tokens of candidates to the hypotheses of their parents.

    `(batch, num_beams, max_length)` becomes `(batch, candidates, max_length)`.
    """
    parents = candidates.parents[:, :, None]
    histories = ops.take_along_axis(token_ids, parents, axis=1)
    return copy_with_slice(histories, candidates.tokens[:, :, None], index, axis=2)
