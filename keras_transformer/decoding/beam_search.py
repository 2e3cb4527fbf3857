"""Beam search, exact where it stops and the same for every batch mate."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.search import (
    Reorder,
    SearchResult,
    Step,
    length_penalty,
    restrict_logits,
)


class _Beams(NamedTuple):
    """The state of the loop; the axis of the hypotheses is sorted, best first."""

    index: Any  # int32 (), position of the next token
    token_ids: Any  # int32 (batch, num_beams, max_length), unfinished hypotheses
    log_probs: Any  # float32 (batch, num_beams), their log-probabilities
    tokens: Any  # int32 (batch, num_beams), the newest token of each
    finished_ids: Any  # int32 (batch, num_hypotheses, max_length), the best that ended
    finished_lengths: Any  # int32 (batch, num_hypotheses)
    finished_scores: Any  # float32 (batch, num_hypotheses), -inf where there is none
    num_finished: Any  # int32 (batch,), how many have ended so far
    done: Any  # bool (batch,), sentences whose search is over
    state: Any  # the model's


@dataclass(frozen=True)
class BeamSearch:
    """Keeps the `num_beams` most probable unfinished hypotheses at every step.

    A hypothesis is finished when the end token is among the `num_beams` best
    continuations; it is then frozen and another one takes its place. The search
    of a sentence is over as soon as no unfinished one can get among the
    `num_hypotheses` best, at any length; once `num_beams` hypotheses have
    finished, as soon as none could by ending at the next token. Nothing in it
    depends on the other sentences of the batch.

    Arguments and result of the call are those of every `Search`.

    Args:
        num_beams: int, unfinished hypotheses kept at each step.
        length_penalty: float, α of the length penalty
            `((5 + length) / 6) ** α` that divides a hypothesis's
            log-probability; 0 = none, larger values favour longer output.
        num_hypotheses: int, how many finished hypotheses are returned (n-best),
            at most `num_beams`.

    Raises:
        ValueError: if `num_beams` or `num_hypotheses` is out of range.

    Example:

    ```python
    texts = model.generate(["hello"], search=BeamSearch(num_beams=5))
    ```

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1
          (4 beams, α = 0.6)
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    num_hypotheses: int = 1

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(
                "`num_beams` must be at least 1; received "
                f"`num_beams={self.num_beams}`."
            )
        if not 1 <= self.num_hypotheses <= self.num_beams:
            raise ValueError(
                "`num_hypotheses` must be between 1 and `num_beams`; received "
                f"`num_hypotheses={self.num_hypotheses}`, "
                f"`num_beams={self.num_beams}`. Search with more beams to get more."
            )

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
        """Searches; see `Search`."""

        def running(*beams: Any) -> Any:
            beams = _Beams(*beams)
            return ops.logical_and(
                beams.index < max_length, ops.logical_not(ops.all(beams.done))
            )

        def advance(*beams: Any) -> _Beams:
            beams = _Beams(*beams)
            logits, state = step(beams.tokens, beams.index, beams.state)
            beams = beams._replace(state=state)
            log_probs, parents, tokens = self._candidates(
                beams, logits, limits, end_token_id, pad_token_id
            )
            token_ids = _extend(beams.token_ids, parents, tokens, beams.index)
            ended = ops.equal(tokens, end_token_id)
            beams = self._finish(beams, token_ids, log_probs, ended, pad_token_id)
            beams = self._continue(
                beams, token_ids, log_probs, ended, parents, tokens, reorder
            )
            return self._mark_done(beams, limits)

        beams = _Beams(
            *ops.while_loop(
                running,
                advance,
                self._start(limits, max_length, start_token_id, pad_token_id, state),
            )
        )
        return SearchResult(
            beams.finished_ids, beams.finished_lengths, beams.finished_scores
        )

    def _start(
        self,
        limits: Any,
        max_length: Any,
        start_token_id: int,
        pad_token_id: int,
        state: Any,
    ) -> _Beams:
        batch, beams, kept = ops.shape(limits)[0], self.num_beams, self.num_hypotheses
        first = ops.equal(ops.arange(beams, dtype="int32"), 0)
        return _Beams(
            index=ops.convert_to_tensor(0, "int32"),
            token_ids=ops.full((batch, beams, max_length), pad_token_id, "int32"),
            log_probs=ops.where(first, 0.0, ops.full((batch, beams), -float("inf"))),
            tokens=ops.full((batch, beams), start_token_id, "int32"),
            finished_ids=ops.full((batch, kept, max_length), pad_token_id, "int32"),
            finished_lengths=ops.zeros((batch, kept), "int32"),
            finished_scores=ops.full((batch, kept), -float("inf"), "float32"),
            num_finished=ops.zeros((batch,), "int32"),
            done=ops.zeros((batch,), "bool"),
            state=state,
        )

    def _candidates(
        self,
        beams: _Beams,
        logits: Any,
        limits: Any,
        end_token_id: int,
        pad_token_id: int,
    ) -> tuple[Any, Any, Any]:
        """Finds the best `2 * num_beams` continuations of all beams.

        At most `num_beams` of them end, so that enough are left to go on.

        Returns:
            Their log-probabilities, parent beams and tokens, each
            `(batch, candidates)`, best first.
        """
        logits = ops.cast(logits, "float32")
        normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
        logits = restrict_logits(
            logits, beams.index, limits, end_token_id, pad_token_id
        )
        per_beam = min(2 * self.num_beams, logits.shape[-1])
        values, tokens = ops.top_k(logits, per_beam)
        log_probs = beams.log_probs[:, :, None] + values - normalizer
        total = self.num_beams * per_beam
        log_probs, chosen = ops.top_k(
            ops.reshape(log_probs, (-1, total)), min(2 * self.num_beams, total)
        )
        tokens = ops.take_along_axis(ops.reshape(tokens, (-1, total)), chosen, axis=1)
        parents = ops.cast(chosen // per_beam, "int32")
        return log_probs, parents, ops.cast(tokens, "int32")

    def _finish(
        self,
        beams: _Beams,
        token_ids: Any,
        log_probs: Any,
        ended: Any,
        pad_token_id: int,
    ) -> _Beams:
        """Takes the ended ones among the first `num_beams` candidates in."""
        first = slice(None), slice(self.num_beams)
        open_ = ops.logical_not(beams.done)[:, None]
        ended = ops.logical_and(ended, log_probs > -float("inf"))[first]
        ended = ops.logical_and(ended, open_)
        length = beams.index + 1
        scores = log_probs[first] / length_penalty(length, self.length_penalty)
        scores = ops.where(ended, scores, -float("inf"))
        lengths = ops.where(ended, length, 0)
        token_ids = ops.where(ended[:, :, None], token_ids[first], pad_token_id)
        scores, best = ops.top_k(
            ops.concatenate([beams.finished_scores, scores], axis=1),
            self.num_hypotheses,
        )
        ids = ops.concatenate([beams.finished_ids, token_ids], axis=1)
        lengths = ops.concatenate([beams.finished_lengths, lengths], axis=1)
        return beams._replace(
            finished_ids=ops.take_along_axis(ids, best[:, :, None], axis=1),
            finished_lengths=ops.take_along_axis(lengths, best, axis=1),
            finished_scores=scores,
            num_finished=beams.num_finished + ops.sum(ops.cast(ended, "int32"), axis=1),
        )

    def _continue(
        self,
        beams: _Beams,
        token_ids: Any,
        log_probs: Any,
        ended: Any,
        parents: Any,
        tokens: Any,
        reorder: Reorder,
    ) -> _Beams:
        """Goes on with the best `num_beams` candidates that have not ended."""
        log_probs, best = ops.top_k(
            ops.where(ended, -float("inf"), log_probs), self.num_beams
        )
        parents = ops.take_along_axis(parents, best, axis=1)
        return beams._replace(
            index=beams.index + 1,
            token_ids=ops.take_along_axis(token_ids, best[:, :, None], axis=1),
            log_probs=log_probs,
            tokens=ops.take_along_axis(tokens, best, axis=1),
            state=reorder(beams.state, parents),
        )

    def _mark_done(self, beams: _Beams, limits: Any) -> _Beams:
        """Ends the search of each sentence that nothing can improve any more.

        An unfinished hypothesis only loses log-probability; of all lengths it
        may still reach, the next or the last one has the kindest penalty.
        """
        soonest = length_penalty(beams.index + 1, self.length_penalty)
        latest = length_penalty(limits, self.length_penalty)
        enough = beams.num_finished >= self.num_beams
        kindest = ops.where(enough, soonest, ops.maximum(soonest, latest))
        hope = beams.log_probs[:, 0] / kindest
        done = ops.logical_or(
            hope <= beams.finished_scores[:, -1], beams.index >= limits
        )
        return beams._replace(done=ops.logical_or(beams.done, done))


def _extend(token_ids: Any, parents: Any, tokens: Any, index: Any) -> Any:
    """Appends each candidate's token to the hypothesis it continues."""
    histories = ops.take_along_axis(token_ids, parents[:, :, None], axis=1)
    return ops.slice_update(histories, (0, 0, index), tokens[:, :, None])
