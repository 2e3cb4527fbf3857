"""Phrases that must occur in the outputs of a beam search."""

from typing import NamedTuple, Self

from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.beam_state import BeamState, Candidates
from keras_transformer.decoding.top_candidates import top_candidates
from keras_transformer.types import Mask, Size, Tensor, TokenIds


class PhraseProgress(NamedTuple):
    """Which parts of the phrases hypotheses have."""

    matched: Mask  # bool (batch, num_beams, phrases, phrase_length), whether a
    # hypothesis ends with the first tokens of a phrase up to this one
    occurrences: Tensor  # int32 (batch, num_beams, phrases), of the whole phrase

    @classmethod
    def empty(
        cls, batch: Size, num_beams: Size, phrases: Size = 0, length: Size = 0
    ) -> Self:
        """Returns the progress of hypotheses without tokens."""
        return cls(
            ops.zeros((batch, num_beams, phrases, length), "bool"),
            ops.zeros((batch, num_beams, phrases), "int32"),
        )

    def of_parents(self, parents: Tensor) -> Self:
        """Selects the progress of the beams `parents`, int32 `(batch, count)`."""
        index = parents[:, :, None]
        return type(self)(
            ops.take_along_axis(self.matched, index[..., None], axis=1),
            ops.take_along_axis(self.occurrences, index, axis=1),
        )


class Phrases:
    """The phrases of each sequence of a batch, and their search in hypotheses.

    `token_ids` are int32 `(batch, phrases, phrase_length)`, padded; a row of padding
    alone is not a phrase. A hypothesis has all phrases if each of them occurs in it. A
    phrase that is given twice has to occur twice, without overlap; different phrases
    may overlap.
    """

    def __init__(self, token_ids: Tensor, pad_token_id: int):
        _, count, length = ops.shape(token_ids)
        is_real = ops.not_equal(token_ids, pad_token_id)
        # No token of a hypothesis is -1.
        self._token_ids = ops.where(is_real, token_ids, -1)[:, None]
        self._lengths = int32_sum(is_real, axis=2)[:, None]
        places = ops.arange(length, dtype="int32")
        self._is_last = ops.equal(places, self._lengths[..., None] - 1)
        are_equal = ops.all(
            ops.equal(token_ids[:, :, None], token_ids[:, None]), axis=-1
        )
        numbers = ops.arange(count, dtype="int32")
        up_to = numbers[:, None] >= numbers
        copies = ops.logical_and(are_equal, up_to)
        # The number of occurrences after which each phrase, or copy of it, is complete.
        self._required = ops.where(
            self._lengths > 0, int32_sum(copies, axis=2)[:, None], 0
        )

    @property
    def shape(self) -> tuple[Size, Size]:
        """The number of phrases of each sequence, and the length of padded phrases."""
        _, _, count, length = ops.shape(self._token_ids)
        return count, length

    @property
    def exist(self) -> Mask:
        """Boolean tensor `(batch,)`, whether a sequence has a phrase."""
        return ops.any(self._required > 0, axis=(1, 2))

    def after(self, progress: PhraseProgress, tokens: TokenIds) -> PhraseProgress:
        """Returns the progress after one more token, `tokens` `(batch, num_beams)`."""
        starts = ops.ones_like(progress.matched[..., :1])
        before = ops.concatenate([starts, progress.matched[..., :-1]], axis=3)
        fits = ops.equal(self._token_ids, tokens[:, :, None, None])
        matched = ops.logical_and(before, fits)
        complete = ops.any(ops.logical_and(matched, self._is_last), axis=-1)
        return PhraseProgress(
            ops.logical_and(matched, ops.logical_not(complete)[..., None]),
            progress.occurrences + ops.cast(complete, "int32"),
        )

    def missing(self, progress: PhraseProgress) -> Tensor:
        """Returns how many tokens complete all phrases, int32 `(batch, num_beams)`.

        The next token of the phrase with the most matched tokens always lowers the
        number.
        """
        is_missing = self._is_missing(progress)
        total = int32_sum(ops.where(is_missing, self._lengths, 0), axis=2)
        begun = ops.where(is_missing, self._begun(progress), 0)
        return total - ops.max(begun, axis=2)

    def next_tokens(self, progress: PhraseProgress) -> TokenIds:
        """Returns next tokens of phrases, `(batch, num_beams, phrases)`; -1 = none."""
        batch, num_beams, count, length = ops.shape(progress.matched)
        shape = (batch, num_beams, count, length)
        following = ops.take_along_axis(
            ops.broadcast_to(self._token_ids, shape),
            self._begun(progress)[..., None],
            axis=3,
        )
        return ops.where(self._is_missing(progress), following[..., 0], -1)

    def lacked_by(self, token_ids: TokenIds) -> Mask:
        """Returns which padded hypotheses lack a phrase, `(batch, num_hypotheses)`."""
        batch, count, length = ops.shape(token_ids)
        start = PhraseProgress.empty(batch, count, *self.shape)

        def read(index: Tensor, progress: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            tokens = ops.take(token_ids, index, axis=2)
            return tuple(self.after(PhraseProgress(*progress), tokens))

        last = ops.fori_loop(0, length, read, tuple(start))
        return self.missing(PhraseProgress(*last)) > 0

    def _begun(self, progress: PhraseProgress) -> Tensor:
        """Returns the number of tokens of each phrase that hypotheses end with."""
        counts = ops.arange(1, ops.shape(progress.matched)[3] + 1, dtype="int32")
        return ops.max(ops.where(progress.matched, counts, 0), axis=3)

    def _is_missing(self, progress: PhraseProgress) -> Mask:
        return progress.occurrences < self._required


def with_progress(beams: BeamState, phrases: Phrases, parents: Tensor) -> BeamState:
    """Returns a state whose progress includes the newest tokens."""
    progress = PhraseProgress(beams.matched, beams.occurrences)
    progress = phrases.after(progress.of_parents(parents), beams.tokens)
    return beams._replace(**progress._asdict())


def phrase_candidates(
    phrases: Phrases,
    beams: BeamState,
    logits: Tensor,  # float32 (batch, num_beams, vocabulary_size)
    normalizer: Tensor,  # float32 (batch, num_beams, 1)
    is_last: Mask,  # bool (batch, 1), whether every hypothesis ends
    end_token_id: int,
) -> Candidates:
    """Returns `2 * num_beams` continuations, spread over the stages of completion.

    The candidates are the best continuations of all hypotheses, the best two of each,
    and the next tokens of the phrases. Those that lack the same number of tokens form a
    bank. The best of each bank come first, beginning with the bank that lacks the
    fewest tokens, then the second of each, and so on. In each step, at least one
    hypothesis therefore gains a token of a phrase, and the others need not contain a
    part of a phrase yet.
    """
    batch, num_beams, size = ops.shape(logits)
    offsets = beams.log_probs - normalizer[:, :, 0]
    progress = PhraseProgress(beams.matched, beams.occurrences)

    def with_beams(tokens: TokenIds) -> tuple[Tensor, ...]:
        """Returns log-probabilities, parents and tokens for tokens of each beam."""
        chosen = ops.take_along_axis(logits, ops.maximum(tokens, 0), axis=2)
        log_probs = ops.where(tokens < 0, -float("inf"), chosen + offsets[:, :, None])
        parents = ops.arange(num_beams, dtype="int32")[:, None]
        parents = ops.broadcast_to(parents, ops.shape(tokens))
        parts = (log_probs, parents, tokens)
        return tuple(ops.reshape(part, (batch, -1)) for part in parts)

    rows = ops.reshape(logits, (batch * num_beams, 1, size))
    best = top_candidates(ops.zeros((batch * num_beams, 1)), rows, min(2, size))
    found = [
        top_candidates(offsets, logits, min(2 * num_beams, num_beams * size)),
        with_beams(ops.reshape(best.columns, (batch, num_beams, -1))),
        with_beams(phrases.next_tokens(progress)),
    ]
    parts = (ops.concatenate(part, axis=1) for part in zip(*found, strict=True))
    log_probs, parents, tokens = parts
    missing = phrases.missing(phrases.after(progress.of_parents(parents), tokens))
    ended = ops.logical_or(ops.equal(tokens, end_token_id), is_last)
    is_banned = ops.logical_or(
        ops.logical_and(ended, missing > 0), _is_repeated(parents, tokens)
    )
    log_probs = ops.where(is_banned, -float("inf"), log_probs)
    scores, chosen = top_k(_ranking_scores(log_probs, missing), 2 * num_beams)
    return Candidates(
        scores,
        ops.take_along_axis(log_probs, chosen, axis=1),
        ops.take_along_axis(parents, chosen, axis=1),
        ops.take_along_axis(tokens, chosen, axis=1),
        ops.take_along_axis(ended, chosen, axis=1),
    )


def _is_repeated(parents: Tensor, tokens: TokenIds) -> Mask:
    """Returns which candidates are equal to an earlier one, `(batch, candidates)`."""
    are_equal = ops.logical_and(
        ops.equal(parents[:, :, None], parents[:, None]),
        ops.equal(tokens[:, :, None], tokens[:, None]),
    )
    numbers = ops.arange(ops.shape(tokens)[1], dtype="int32")
    return ops.any(ops.logical_and(are_equal, numbers < numbers[:, None]), axis=2)


def _ranking_scores(log_probs: Tensor, missing: Tensor) -> Tensor:
    """Ranks candidates, `(batch, candidates)`; see `phrase_candidates`."""
    # `missing` are the numbers of the banks. `-inf` = no candidate.
    numbers = ops.arange(ops.shape(log_probs)[1], dtype="int32")
    own, others = log_probs[:, :, None], log_probs[:, None]
    is_before = ops.logical_and(ops.equal(others, own), numbers < numbers[:, None])
    is_better = ops.logical_or(others > own, is_before)
    in_bank = ops.equal(missing[:, None], missing[:, :, None])
    rank = int32_sum(ops.logical_and(is_better, in_bank), axis=-1)
    own, others = rank[:, :, None], rank[:, None]
    is_before = ops.logical_and(ops.equal(others, own), is_better)
    place = int32_sum(ops.logical_or(others < own, is_before), axis=-1)
    exists = log_probs > -float("inf")
    least = ops.min(ops.where(exists, missing, 2**30), axis=1, keepdims=True)
    is_first = ops.logical_and(ops.equal(missing, least), ops.equal(rank, 0))
    place = ops.where(is_first, -1, place)
    return ops.where(exists, -ops.cast(place, "float32"), -float("inf"))
