"""Beam search that stops when no unfinished hypothesis can be better."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.beam_groups import (
    check_groups,
    group_candidates,
    join_groups,
    join_parents,
    split_groups,
)
from keras_transformer.decoding.beam_state import (
    BeamState,
    Candidates,
    append,
    end_broken,
)
from keras_transformer.decoding.decoding_model import (
    DecodingModel,
    ModelState,
    reorder_beams,
)
from keras_transformer.decoding.length_penalties import (
    LengthPenalty,
    as_length_penalty,
    coverage_penalty,
)
from keras_transformer.decoding.logits_processors import (
    History,
    LogitsProcessor,
    as_logits_processors,
    process_logits,
)
from keras_transformer.decoding.phrases import (
    PhraseProgress,
    Phrases,
    phrase_candidates,
    with_progress,
)
from keras_transformer.decoding.search import SearchInputs, SearchResult
from keras_transformer.decoding.top_candidates import top_candidates
from keras_transformer.types import Size, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints


@dataclass(frozen=True)
class BeamSearch:
    """Keeps the `num_beams` most probable unfinished hypotheses at every step.

    A hypothesis is finished when its end token is among the `num_beams` best
    continuations. The search keeps it and continues with `num_beams` unfinished
    hypotheses. The search of a sequence stops when no unfinished hypothesis can become
    one of the `num_hypotheses` best at any length. When `num_beams * patience`
    hypotheses are finished, it stops when none can become one of the best by ending at
    the next token. The result does not depend on the other sequences of the batch.

    The score of a finished hypothesis is its log-probability, divided by the length
    penalty, plus the coverage penalty.

    Args:
        num_beams: int, number of unfinished hypotheses in each step.
        length_penalty: a `LengthPenalty`, or a float, the α of
            `GNMTLengthPenalty`: `((5 + length) / 6) ** α`; 0 = no penalty, larger
            values favour longer output.
        num_hypotheses: int, number of finished hypotheses in the result (n-best), at
            most `num_beams`.
        patience: positive float; with `inf` the search stops only when no unfinished
            hypothesis can become one of the best at any length.
        early_stopping: bool, whether the search of a sequence stops as soon as
            `num_beams * patience` hypotheses, and at least `num_hypotheses`, are
            finished, even if an unfinished one may be better. This is faster, and it is
            the default of other toolkits.
        coverage_penalty: float of at least 0, the β of the coverage penalty, which
            lowers the score for each source token with little attention. The attention
            is the mean over the heads of the decoder's last block.
        logits_processors: rules that change the scores of the next token
            (`LogitsProcessor`), in the order of their application.
        num_beam_groups: int, number of groups of beams, a divisor of `num_beams`
            (diverse beam search). Each group is a separate beam search that avoids the
            tokens that the groups before it choose in the same step. The result has the
            best hypotheses of each group, and each hypothesis once.
        diversity_penalty: float, subtracted from the log-probability of a token for
            each beam of an earlier group that chooses it. It affects the choice, not
            the scores. It must be positive if there are several groups.

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
        - [Vijayakumar et al., 2016](https://arxiv.org/abs/1610.02424) (groups)
    """

    num_beams: int = 4
    length_penalty: float | LengthPenalty = 0.6
    num_hypotheses: int = 1
    patience: float = 1.0
    early_stopping: bool = False
    coverage_penalty: float = 0.0
    logits_processors: Sequence[LogitsProcessor] = ()
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0

    def __post_init__(self) -> None:
        processors = as_logits_processors(self.logits_processors)
        object.__setattr__(self, "logits_processors", processors)
        check_ints(1, num_beams=self.num_beams, num_hypotheses=self.num_hypotheses)
        check_groups(self.num_beams, self.num_beam_groups, self.diversity_penalty)
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
        """Whether the search has a coverage penalty, which depends on the attention."""
        return self.coverage_penalty > 0

    def start(
        self,
        model: DecodingModel,
        inputs: SearchInputs,
        state: ModelState,
        max_length: Size,
    ) -> BeamState:
        """Creates the state before the first step; see `Search.start`."""
        batch, source_length = ops.shape(inputs.source_mask)
        groups, group_search = self.num_beam_groups, self._group_search()
        beams, kept = self.num_beams, groups * group_search.num_hypotheses
        indices = ops.arange(beams, dtype="int32") % group_search.num_beams
        first = ops.equal(indices, 0)
        shape = (batch,) if groups == 1 else (batch, groups)
        pad = model.pad_token_id
        covered = source_length if self.needs_attention else 0
        done = ops.zeros(shape, "bool")
        progress = PhraseProgress.empty(batch, beams)
        if inputs.has_phrases:
            phrases = Phrases(inputs.phrases, pad)
            done = ops.logical_not(phrases.exist)
            progress = PhraseProgress.empty(batch, beams, *phrases.shape)
        return BeamState(
            index=ops.convert_to_tensor(0, "int32"),
            done=done,
            token_ids=ops.full((batch, beams, max_length), pad, "int32"),
            log_probs=ops.where(
                first, 0.0, ops.full((batch, beams), -float("inf"), "float32")
            ),
            tokens=ops.full((batch, beams), model.start_token_id, "int32"),
            coverage=ops.zeros((batch, beams, covered), "float32"),
            matched=progress.matched,
            occurrences=progress.occurrences,
            finished_ids=ops.full((batch, kept, max_length), pad, "int32"),
            finished_lengths=ops.zeros((batch, kept), "int32"),
            finished_scores=ops.full((batch, kept), -float("inf"), "float32"),
            num_finished=ops.zeros(shape, "int32"),
            is_broken=ops.zeros(shape, "bool"),
            state=state,
        )

    def advance(
        self, model: DecodingModel, inputs: SearchInputs, search_state: BeamState
    ) -> BeamState:
        """Computes one step; see `Search.advance`."""
        beams = search_state
        logits, state = model.decode_step(beams.tokens, beams.index, beams.state)
        beams = beams._replace(state=state)
        if self.needs_attention:
            attention = ops.cast(state["attention"], "float32")
            beams = beams._replace(coverage=beams.coverage + attention)
        logits = ops.cast(logits, "float32")
        normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
        history = History(beams.token_ids, beams.index, normalizer)
        logits = process_logits(logits, history, self.logits_processors, model, inputs)
        groups, group_search = self.num_beam_groups, self._group_search()
        beams, group_inputs = split_groups(beams, groups), inputs.repeated(groups)
        beams = end_broken(beams, normalizer)
        candidates = self._candidates(beams, logits, normalizer, model, inputs)
        token_ids = append(beams.token_ids, candidates, beams.index)
        beams = group_search._add_finished(
            beams, candidates, token_ids, model, group_inputs
        )
        beams, parents = group_search._continue(beams, candidates, token_ids)
        if inputs.has_phrases:
            phrases = Phrases(inputs.phrases, model.pad_token_id)
            beams = with_progress(beams, phrases, parents)
        beams = group_search._mark_done(beams, group_inputs.limits)
        beams = join_groups(beams, groups)
        parents = join_parents(parents, groups)
        return beams._replace(state=reorder_beams(model, beams.state, parents))

    def result(self, model: DecodingModel, search_state: BeamState) -> SearchResult:
        """Returns the finished hypotheses; see `Search.result`."""
        scores, groups = search_state.finished_scores, self.num_beam_groups
        # (batch,) or (batch, num_beam_groups), as many times as a group has hypotheses
        is_broken = ops.reshape(search_state.is_broken, (-1, groups))
        is_broken = ops.repeat(is_broken, scores.shape[1] // groups, axis=1)
        is_broken = ops.logical_and(ops.equal(scores, -float("inf")), is_broken)
        result = SearchResult(
            search_state.finished_ids,
            search_state.finished_lengths,
            ops.where(is_broken, float("nan"), scores),
        )
        if groups == 1:
            return result
        return result.distinct(self.num_hypotheses, model.pad_token_id)

    def _group_search(self) -> "BeamSearch":
        """Returns the search of each group of beams: `self` without groups."""
        groups = self.num_beam_groups
        if groups == 1:
            return self
        return dataclasses.replace(
            self,
            num_beams=self.num_beams // groups,
            num_hypotheses=-(-self.num_hypotheses // groups),
            num_beam_groups=1,
            diversity_penalty=0.0,
        )

    def _candidates(
        self,
        beams: BeamState,
        logits: Tensor,
        normalizer: Tensor,
        model: DecodingModel,
        inputs: SearchInputs,
    ) -> Candidates:
        """Returns the best `2 * num_beams` continuations, or those of each group."""
        # Before the limit, at most `num_beams` of them end, so that at least
        # `num_beams` continue.
        is_last = (beams.index + 1 >= inputs.limits)[:, None]
        if inputs.has_phrases:
            phrases = Phrases(inputs.phrases, model.pad_token_id)
            end = model.end_token_id
            return phrase_candidates(phrases, beams, logits, normalizer, is_last, end)
        if self.num_beam_groups > 1:
            return group_candidates(
                beams,
                logits,
                normalizer,
                is_last,
                model.end_token_id,
                self.num_beam_groups,
                self.diversity_penalty,
            )
        total = self.num_beams * logits.shape[-1]
        log_probs, parents, tokens = top_candidates(
            beams.log_probs - normalizer[:, :, 0],
            logits,
            min(2 * self.num_beams, total),
        )
        ended = ops.logical_or(ops.equal(tokens, model.end_token_id), is_last)
        return Candidates(log_probs, log_probs, parents, tokens, ended)

    def _add_finished(
        self,
        beams: BeamState,
        candidates: Candidates,
        token_ids: TokenIds,
        model: DecodingModel,
        inputs: SearchInputs,
    ) -> BeamState:
        """Adds the ended hypotheses among the first `num_beams` candidates."""
        # A mask, as XLA sorts all logits if the candidates are sliced.
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
            mask, beta = inputs.source_mask, self.coverage_penalty
            scores = scores + coverage_penalty(coverage, mask, beta)
        is_broken = ops.logical_and(ended, ops.isnan(scores))
        ended = ops.logical_and(ended, ops.logical_not(is_broken))
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
            num_finished=beams.num_finished + int32_sum(ended, axis=1),
            is_broken=ops.logical_or(beams.is_broken, ops.any(is_broken, axis=1)),
        )

    def _continue(
        self, beams: BeamState, candidates: Candidates, token_ids: TokenIds
    ) -> tuple[BeamState, Tensor]:
        """Returns the state of the best unfinished candidates, and their parents."""
        scores = ops.where(candidates.ended, -float("inf"), candidates.ranking_scores)
        scores, best = top_k(scores, self.num_beams)
        log_probs = ops.take_along_axis(candidates.log_probs, best, axis=1)
        parents = ops.take_along_axis(candidates.parents, best, axis=1)
        coverage = ops.take_along_axis(beams.coverage, parents[:, :, None], axis=1)
        beams = beams._replace(
            index=beams.index + 1,
            token_ids=ops.take_along_axis(token_ids, best[:, :, None], axis=1),
            log_probs=ops.where(scores > -float("inf"), log_probs, -float("inf")),
            tokens=ops.take_along_axis(candidates.tokens, best, axis=1),
            coverage=coverage,
        )
        return beams, parents

    def _mark_done(self, beams: BeamState, limits: Tensor) -> BeamState:
        """Stops the search of each sequence whose result cannot improve."""
        # The log-probability of an unfinished hypothesis only falls, unless a logits
        # processor can raise it, and a coverage penalty only lowers a score. Length
        # penalties are monotonic, so the divisor of the next length or that of the
        # limit is the greatest.
        next_divisor = self._length_penalty(beams.index + 1)
        last_divisor = self._length_penalty(limits)
        required = max(self.num_beams * self.patience, self.num_hypotheses)
        enough = ops.cast(beams.num_finished, "float32") >= required
        greatest = ops.maximum(next_divisor, last_divisor)
        divisor = ops.where(enough, next_divisor, greatest)
        upper_bound = ops.max(beams.log_probs, axis=1) / divisor
        rules = self.logits_processors
        if not all(getattr(rule, "only_lowers", False) for rule in rules):
            ended = ops.equal(upper_bound, -float("inf"))  # no rule raises it again
            bounded = ops.logical_or(enough, ended)
            upper_bound = ops.where(bounded, upper_bound, float("inf"))
        done = ops.logical_or(
            upper_bound <= beams.finished_scores[:, -1], beams.index >= limits
        )
        if self.early_stopping:
            done = ops.logical_or(done, enough)
        return beams._replace(done=ops.logical_or(beams.done, done))

    def _length_penalty(self, length: Size) -> Tensor:
        return as_length_penalty(self.length_penalty)(length)
