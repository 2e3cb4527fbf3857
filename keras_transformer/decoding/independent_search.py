"""Decoding without beams: each hypothesis is independent."""

from collections.abc import Sequence
from typing import NamedTuple

from keras import ops

from keras_transformer.backend.slice_update import copy_with_slice
from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.decoding_model import DecodingModel, ModelState
from keras_transformer.decoding.logits_processors import (
    History,
    LogitsProcessor,
    process_logits,
)
from keras_transformer.decoding.search import SearchInputs, SearchResult
from keras_transformer.types import Mask, Size, Tensor, TokenIds


class IndependentState(NamedTuple):
    """The state between two steps of an `IndependentSearch`."""

    index: Tensor  # type: ignore[assignment]  # int32 (), position of the next token
    done: Mask  # bool (batch, num_beams), the finished hypotheses
    token_ids: TokenIds  # int32 (batch, num_beams, max_length)
    tokens: TokenIds  # int32 (batch, num_beams), the newest tokens
    lengths: Tensor  # int32 (batch, num_beams)
    log_probs: Tensor  # float32 (batch, num_beams)
    state: ModelState


class IndependentSearch:
    """Base class of searches that extend each hypothesis by one token per step.

    Subclasses define `num_beams`, `logits_processors` and `choose`.
    """

    logits_processors: Sequence[LogitsProcessor]

    @property
    def num_beams(self) -> int:
        """Number of hypotheses of a sequence."""
        return 1

    def choose(self, logits: Tensor, index: Tensor, inputs: SearchInputs) -> TokenIds:
        """Chooses the next tokens.

        Args:
            logits: float32 tensor `(batch, num_beams, vocabulary_size)`.
            index: int32 scalar tensor, position of the tokens.
            inputs: the constraints of the search.

        Returns:
            int32 tensor `(batch, num_beams)`. A token whose logit is `-inf` is chosen
            only if all logits are `-inf`.
        """
        raise TypeError(f"{type(self).__name__} must define `choose`.")

    def start(
        self,
        model: DecodingModel,
        inputs: SearchInputs,
        state: ModelState,
        max_length: Size,
    ) -> IndependentState:
        """Creates the state before the first step; see `Search.start`."""
        shape = (ops.shape(inputs.limits)[0], self.num_beams)
        return IndependentState(
            index=ops.convert_to_tensor(0, "int32"),
            done=ops.zeros(shape, "bool"),
            token_ids=ops.full((*shape, max_length), model.pad_token_id, "int32"),
            tokens=ops.full(shape, model.start_token_id, "int32"),
            lengths=ops.zeros(shape, "int32"),
            log_probs=ops.zeros(shape, "float32"),
            state=state,
        )

    def advance(
        self, model: DecodingModel, inputs: SearchInputs, search_state: IndependentState
    ) -> IndependentState:
        """Computes one step; see `Search.advance`.

        A hypothesis ends with the log-probability `-inf` if the logits processors ban
        all tokens. If the logits of the model have no probabilities, it ends with the
        log-probability NaN.
        """
        before = search_state
        logits, state = model.decode_step(before.tokens, before.index, before.state)
        logits = ops.cast(logits, "float32")
        normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
        history = History(before.token_ids, before.index, normalizer)
        logits = process_logits(logits, history, self.logits_processors, model, inputs)
        best = self.choose(logits, before.index, inputs)
        logit = ops.take_along_axis(logits, best[:, :, None], axis=2)
        log_probs = (logit - normalizer)[:, :, 0]
        is_broken = ops.logical_not(ops.isfinite(normalizer[:, :, 0]))
        log_probs = ops.where(is_broken, float("nan"), log_probs)
        is_alive = log_probs > -float("inf")  # otherwise all tokens are banned
        tokens = ops.where(is_alive, best, model.end_token_id)
        tokens = ops.where(before.done, model.pad_token_id, tokens)
        log_probs = ops.where(before.done, 0.0, log_probs)
        is_last = (before.index + 1 >= inputs.limits)[:, None]
        ended = ops.logical_or(ops.equal(tokens, model.end_token_id), is_last)
        return IndependentState(
            index=before.index + 1,
            done=ops.logical_or(before.done, ended),
            token_ids=copy_with_slice(
                before.token_ids, tokens[:, :, None], before.index, axis=2
            ),
            tokens=tokens,
            lengths=ops.where(before.done, before.lengths, before.index + 1),
            log_probs=before.log_probs + log_probs,
            state=state,
        )

    def result(
        self, model: DecodingModel, search_state: IndependentState
    ) -> SearchResult:
        """Returns the hypotheses, best first; see `Search.result`."""
        log_probs = search_state.log_probs
        ranks = ops.where(ops.isnan(log_probs), -float("inf"), log_probs)
        _, order = top_k(ranks, self.num_beams)
        scores = ops.take_along_axis(log_probs, order, axis=1)
        lengths = ops.take_along_axis(search_state.lengths, order, axis=1)
        token_ids = ops.take_along_axis(
            search_state.token_ids, order[:, :, None], axis=1
        )
        found = scores > -float("inf")
        return SearchResult(
            ops.where(found[:, :, None], token_ids, model.pad_token_id),
            ops.where(found, lengths, 0),
            scores,
        )
