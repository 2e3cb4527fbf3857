"""Beam search, exact where it stops and the same for every batch mate."""

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from numbers import Real
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.arguments import check_ints, renamed_argument
from keras_transformer.backend.cross_entropy import log_normalizer
from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.length_penalties import (
    LengthPenalty,
    as_length_penalty,
    coverage_penalty,
)
from keras_transformer.decoding.logits_processors import (
    History,
    LogitsProcessor,
    as_rules,
    process,
)
from keras_transformer.decoding.search import SearchResult, Sentences, StepModel
from keras_transformer.decoding.wide_top_k import top_candidates


class Beams(NamedTuple):
    """The state between two steps; the hypotheses of a sentence come best first."""

    index: Any  # int32 (), position of the next token
    done: Any  # bool (batch,), sentences whose search is over
    token_ids: Any  # int32 (batch, num_beams, max_length), unfinished hypotheses
    log_probs: Any  # float32 (batch, num_beams), their log-probabilities
    tokens: Any  # int32 (batch, num_beams), the newest token of each
    coverage: Any  # float32 (batch, num_beams, source_length), attention so far
    finished_ids: Any  # int32 (batch, num_hypotheses, max_length), the best that ended
    finished_lengths: Any  # int32 (batch, num_hypotheses)
    finished_scores: Any  # float32 (batch, num_hypotheses), -inf where there is none
    num_finished: Any  # int32 (batch,), how many have ended so far
    state: Any  # the model's


class Candidates(NamedTuple):
    """Hypotheses one token longer, `(batch, candidates)`, best first."""

    log_probs: Any  # float32
    parents: Any  # int32, the beams they continue
    tokens: Any  # int32, their newest tokens
    ended: Any  # bool, whether that is the end token


@dataclass(frozen=True)
class BeamSearch:
    """Keeps the `num_beams` most probable unfinished hypotheses at every step.

    A hypothesis is finished when the end token is among the `num_beams` best
    continuations; it is then frozen and another one takes its place. The search
    of a sentence is over as soon as no unfinished one can get among the
    `num_hypotheses` best, at any length; once `num_beams * patience` hypotheses
    have finished, as soon as none could by ending at the next token. Nothing in
    it depends on the other sentences of the batch.

    A finished hypothesis scores its log-probability, divided by the length penalty,
    plus the coverage penalty.

    Args:
        num_beams: int, unfinished hypotheses kept at each step.
        length_penalty: a `LengthPenalty`, or a float, the α of
            `GNMTLengthPenalty`: `((5 + length) / 6) ** α`; 0 = none, larger values
            favour longer output.
        num_hypotheses: int, how many finished hypotheses are returned (n-best),
            at most `num_beams`.
        patience: positive float; `inf` = the search goes on until no unfinished
            hypothesis can win at any length.
        early_stopping: whether the search of a sentence is over as soon as
            `num_beams * patience` hypotheses have finished, and `num_hypotheses`, even
            if the next could be better; faster, and what other toolkits do.
        coverage_penalty: float of at least 0, the β of `coverage_penalty`: what is
            taken off for each part of the source that got little attention, in the
            decoder's last block on the mean over its heads.
        logits_processors: rules that change the scores of the next token
            (`LogitsProcessor`), in their order.
        processors: deprecated name of `logits_processors`.

    Raises:
        ValueError: if an argument is out of its range.

    Example:

    ```python
    texts = model.generate(["hello"], search=BeamSearch(num_beams=5))
    ```

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1
          (4 beams, α = 0.6)
        - [Kasai et al., 2022](https://arxiv.org/abs/2204.05424) (patience)
    """

    num_beams: int = 4
    length_penalty: float | LengthPenalty = 0.6
    num_hypotheses: int = 1
    patience: float = 1.0
    early_stopping: bool = False
    coverage_penalty: float = 0.0
    logits_processors: Sequence[LogitsProcessor] = ()
    processors: InitVar[Sequence[LogitsProcessor] | None] = None

    def __post_init__(self, processors: Sequence[LogitsProcessor] | None) -> None:
        rules = renamed_argument(
            "processors", processors, "logits_processors", self.logits_processors
        )
        object.__setattr__(self, "logits_processors", as_rules(rules))
        check_ints(1, num_beams=self.num_beams, num_hypotheses=self.num_hypotheses)
        penalty = self.length_penalty
        is_finite = isinstance(penalty, Real) and math.isfinite(penalty)
        if not (is_finite or callable(penalty)):
            raise ValueError(
                "`length_penalty` must be a finite number or a `LengthPenalty`; "
                f"received `length_penalty={penalty!r}`."
            )
        if self.num_hypotheses > self.num_beams:
            raise ValueError(
                "`num_hypotheses` must be at most `num_beams`; received "
                f"`num_hypotheses={self.num_hypotheses}`, "
                f"`num_beams={self.num_beams}`. Search with more beams to get more."
            )
        if not self.patience > 0:
            raise ValueError(
                f"`patience` must be above 0; received `patience={self.patience}`."
            )
        if not 0 <= self.coverage_penalty < math.inf:
            raise ValueError(
                "`coverage_penalty` must be a number of at least 0; received "
                f"`coverage_penalty={self.coverage_penalty}`."
            )

    @property
    def needs_attention(self) -> bool:
        """The coverage penalty goes by it."""
        return self.coverage_penalty > 0

    def start(
        self, model: StepModel, sentences: Sentences, state: Any, max_length: Any
    ) -> Beams:
        """Makes the state before the first step; see `Search`."""
        batch, source_length = ops.shape(sentences.source_mask)
        beams, kept = self.num_beams, self.num_hypotheses
        first = ops.equal(ops.arange(beams, dtype="int32"), 0)
        pad = model.pad_token_id
        seen = source_length if self.needs_attention else 0
        return Beams(
            index=ops.convert_to_tensor(0, "int32"),
            done=ops.zeros((batch,), "bool"),
            token_ids=ops.full((batch, beams, max_length), pad, "int32"),
            log_probs=ops.where(
                first, 0.0, ops.full((batch, beams), -float("inf"), "float32")
            ),
            tokens=ops.full((batch, beams), model.start_token_id, "int32"),
            coverage=ops.zeros((batch, beams, seen), "float32"),
            finished_ids=ops.full((batch, kept, max_length), pad, "int32"),
            finished_lengths=ops.zeros((batch, kept), "int32"),
            finished_scores=ops.full((batch, kept), -float("inf"), "float32"),
            num_finished=ops.zeros((batch,), "int32"),
            state=state,
        )

    def advance(self, model: StepModel, sentences: Sentences, progress: Beams) -> Beams:
        """Makes one step; see `Search`."""
        logits, state = model.step(progress.tokens, progress.index, progress.state)
        beams = progress._replace(state=state)
        if self.needs_attention:
            newest = ops.cast(state["attention"], "float32")
            beams = beams._replace(coverage=beams.coverage + newest)
        candidates = self._candidates(beams, logits, model, sentences)
        token_ids = _extend(beams.token_ids, candidates, beams.index)
        beams = self._finish(beams, candidates, token_ids, model, sentences)
        beams = self._continue(beams, candidates, token_ids, model)
        return self._mark_done(beams, sentences.limits)

    def result(self, model: StepModel, progress: Beams) -> SearchResult:
        """Returns the finished hypotheses; see `Search`."""
        return SearchResult(
            progress.finished_ids, progress.finished_lengths, progress.finished_scores
        )

    def _candidates(
        self, beams: Beams, logits: Any, model: StepModel, sentences: Sentences
    ) -> Candidates:
        """Finds the best `2 * num_beams` continuations of all beams.

        At most `num_beams` of them end, so that enough are left to go on.
        """
        logits = ops.cast(logits, "float32")
        normalizer = log_normalizer(logits)
        history = History(beams.token_ids, beams.index, normalizer)
        logits = process(logits, history, self.logits_processors, model, sentences)
        total = self.num_beams * logits.shape[-1]
        log_probs, parents, tokens = top_candidates(
            beams.log_probs - normalizer[:, :, 0],
            logits,
            min(2 * self.num_beams, total),
        )
        ended = ops.equal(tokens, model.end_token_id)
        return Candidates(log_probs, parents, tokens, ended)

    def _finish(
        self,
        beams: Beams,
        candidates: Candidates,
        token_ids: Any,
        model: StepModel,
        sentences: Sentences,
    ) -> Beams:
        """Takes the ended ones among the first `num_beams` candidates in."""
        # Not by a slice of them: XLA then sorts all that they were chosen from.
        first = ops.arange(candidates.ended.shape[1]) < self.num_beams
        log_probs = candidates.log_probs
        ended = ops.logical_and(candidates.ended, first)
        ended = ops.logical_and(ended, log_probs > -float("inf"))
        ended = ops.logical_and(ended, ops.logical_not(beams.done)[:, None])
        length = beams.index + 1
        scores = log_probs / self._length_penalty(length)
        if self.needs_attention:
            parents = candidates.parents[:, :, None]
            coverage = ops.take_along_axis(beams.coverage, parents, axis=1)
            mask, beta = sentences.source_mask, self.coverage_penalty
            scores = scores + coverage_penalty(coverage, mask, beta)
        scores = ops.where(ended, scores, -float("inf"))
        lengths = ops.where(ended, length, 0)
        token_ids = ops.where(ended[:, :, None], token_ids, model.pad_token_id)
        scores, best = top_k(
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
        self, beams: Beams, candidates: Candidates, token_ids: Any, model: StepModel
    ) -> Beams:
        """Goes on with the best `num_beams` candidates that have not ended."""
        open_ = ops.where(candidates.ended, -float("inf"), candidates.log_probs)
        log_probs, best = top_k(open_, self.num_beams)
        parents = ops.take_along_axis(candidates.parents, best, axis=1)
        coverage = ops.take_along_axis(beams.coverage, parents[:, :, None], axis=1)
        return beams._replace(
            index=beams.index + 1,
            token_ids=ops.take_along_axis(token_ids, best[:, :, None], axis=1),
            log_probs=log_probs,
            tokens=ops.take_along_axis(candidates.tokens, best, axis=1),
            coverage=coverage,
            state=model.reorder(beams.state, parents),
        )

    def _mark_done(self, beams: Beams, limits: Any) -> Beams:
        """Ends the search of each sentence that nothing can improve any more.

        An unfinished hypothesis only loses log-probability, unless a rule may raise
        it; of all lengths it may still reach, the next or the last one has the
        kindest penalty. A coverage penalty would only make it worse.
        """
        soonest = self._length_penalty(beams.index + 1)
        latest = self._length_penalty(limits)
        wanted = max(self.num_beams * self.patience, self.num_hypotheses)
        enough = ops.cast(beams.num_finished, "float32") >= wanted
        kindest = ops.where(enough, soonest, ops.maximum(soonest, latest))
        hope = beams.log_probs[:, 0] / kindest
        if not all(
            getattr(rule, "only_lowers", False) for rule in self.logits_processors
        ):
            hope = ops.where(enough, hope, float("inf"))
        done = ops.logical_or(
            hope <= beams.finished_scores[:, -1], beams.index >= limits
        )
        if self.early_stopping:
            done = ops.logical_or(done, enough)
        return beams._replace(done=ops.logical_or(beams.done, done))

    def _length_penalty(self, length: Any) -> Any:
        return as_length_penalty(self.length_penalty)(length)


def _extend(token_ids: Any, candidates: Candidates, index: Any) -> Any:
    """Appends each candidate's token to the hypothesis it continues."""
    parents = candidates.parents[:, :, None]
    histories = ops.take_along_axis(token_ids, parents, axis=1)
    return ops.slice_update(histories, (0, 0, index), candidates.tokens[:, :, None])
