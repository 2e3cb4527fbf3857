"""The protocol of a search, its inputs and its result."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from keras import ops

from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.decoding_model import DecodingModel, ModelState
from keras_transformer.types import Mask, Size, Tensor, TokenIds

NO_PHRASES: Any = np.zeros((0, 0, 0), "int32")


class SearchInputs(NamedTuple):
    """The constraints of a search, a row for each sequence of the batch.

    Attributes:
        limits: int32 tensor `(batch,)`, the maximum lengths, the end token included.
            The token at the limit is the end token, unless the model has
            `forces_end_token=False`.
        min_lengths: int32 tensor `(batch,)`, the minimum lengths, the end token
            included. `limits` takes precedence.
        prefixes: int32 tensor `(batch, prefix_length)`, the first tokens of every
            hypothesis, then padding.
        source_mask: boolean tensor `(batch, source_length)`, the real tokens of the
            sources.
        keys: int32 tensor `(batch,)`, the keys of the random numbers.
        phrases: int32 tensor `(batch, phrases, phrase_length)`, padded: the phrases
            that must occur in each hypothesis. Only `BeamSearch` supports them.
    """

    limits: Tensor
    min_lengths: Tensor
    prefixes: TokenIds
    source_mask: Mask
    keys: Tensor
    phrases: TokenIds = NO_PHRASES

    @property
    def has_phrases(self) -> bool:
        """Whether the search is compiled for phrases."""
        return self.phrases.shape[1] != 0

    def repeated(self, count: int) -> Self:
        """Returns each row `count` times in succession."""
        if count == 1:
            return self
        return type(self)(*(ops.repeat(x, count, axis=0) for x in self))

    @classmethod
    def of_batch(cls, batch_size: int, max_length: int, seed: int = 0) -> Self:
        """Creates the inputs of a search without other constraints than the length.

        Args:
            batch_size: int, number of sequences.
            max_length: int, maximum length, the end token included.
            seed: int, seed of the random numbers, which differ between the rows.

        Returns:
            `SearchInputs`, with sources of length 0.
        """
        rows = ops.arange(batch_size, dtype="int32")
        return cls(
            limits=ops.full((batch_size,), max_length, "int32"),
            min_lengths=ops.zeros((batch_size,), "int32"),
            prefixes=ops.zeros((batch_size, 0), "int32"),
            source_mask=ops.zeros((batch_size, 0), "bool"),
            keys=rows + seed,
        )


class SearchResult(NamedTuple):
    """The hypotheses of a search, best first.

    Attributes:
        token_ids: int32 tensor `(batch, num_hypotheses, max_length)`, each
            hypothesis with its end token, if it has one, then padding.
        lengths: int32 tensor `(batch, num_hypotheses)`, number of tokens of each, the
            end token included, the start token not; 0 where the search found fewer
            hypotheses.
        scores: float32 tensor `(batch, num_hypotheses)`, sum of the
            log-probabilities of the tokens, divided by the length penalty; `-inf`
            where there is no hypothesis, because rules ban every token; NaN where
            there is none because the model gives logits without probabilities: one is
            NaN or `inf`, or all are `-inf`.
        truncated: boolean tensor `(batch, num_hypotheses)`, which hypotheses have
            reached the maximum length: the search forced their end token, or they have
            none. `None` in the result of a single `Search`.
    """

    token_ids: TokenIds
    lengths: Tensor
    scores: Tensor
    truncated: Mask = None  # type: ignore[assignment]

    def merged(self, other: Self, pad_token_id: int) -> Self:
        """Returns the best hypotheses of two results, each hypothesis once.

        Args:
            other: the result of another search for the same sequences.
            pad_token_id: int, fills the result.

        Returns:
            A `SearchResult` of as many hypotheses as this one has.
        """
        count = self.scores.shape[1]
        parts = zip(self[:3], other[:3], strict=True)
        both = type(self)(*(ops.concatenate(pair, axis=1) for pair in parts))
        return both.distinct(count, pad_token_id)

    def distinct(self, count: int, pad_token_id: int) -> Self:
        """Returns the best hypotheses in the order of their scores, each once.

        Args:
            count: int, number of hypotheses of the new result.
            pad_token_id: int, fills the result.

        Returns:
            A `SearchResult`.
        """
        # NaN, which each backend orders in its own way, is before no hypothesis.
        scores = ops.where(ops.isnan(self.scores), -3e38, self.scores)
        token_ids = self.token_ids
        are_equal = ops.all(
            ops.equal(token_ids[:, :, None], token_ids[:, None]), axis=3
        )
        exists = scores > -float("inf")
        numbers = ops.arange(scores.shape[1], dtype="int32")
        is_copy = ops.logical_and(are_equal, numbers < numbers[:, None])
        is_copy = ops.any(ops.logical_and(is_copy, exists[:, None]), axis=2)
        scores = ops.where(is_copy, -float("inf"), scores)
        scores, best = top_k(scores, count)
        found = scores > -float("inf")
        token_ids = ops.take_along_axis(token_ids, best[:, :, None], axis=1)
        lengths = ops.take_along_axis(self.lengths, best, axis=1)
        own = ops.take_along_axis(self.scores, best, axis=1)
        return type(self)(
            ops.where(found[:, :, None], token_ids, pad_token_id),
            ops.where(found, lengths, 0),
            ops.where(found, own, -float("inf")),
        )


class SearchState(Protocol):
    """The state of a search between two steps: a NamedTuple of tensors.

    `index` is the first field and `state` the last. The first axis of all other fields
    is the batch.
    """

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator of the fields."""
        ...

    def _replace(self, **kwargs: Any) -> Self:
        """Returns a copy with other values of some fields, as any NamedTuple does."""
        ...

    @property
    def index(self) -> Tensor:
        """Int32 scalar tensor, the position of the next token."""
        ...

    @property
    def done(self) -> Mask:
        """Boolean tensor `(batch, ...)`, the finished parts of the search."""
        ...

    @property
    def state(self) -> ModelState:
        """The state of the model."""
        ...


StateT = TypeVar("StateT", bound=SearchState)


class Search(Protocol[StateT]):
    """A search for the most probable outputs of a `DecodingModel`."""

    @property
    def num_beams(self) -> int:
        """Number of hypotheses of a sequence in each step."""
        ...

    @property
    def num_hypotheses(self) -> int:
        """Number of finished hypotheses of a sequence in the result."""
        ...

    @property
    def needs_attention(self) -> bool:
        """Whether the search reads `state["attention"]`; see `DecodingModel`."""
        ...

    def start(
        self,
        model: DecodingModel,
        inputs: SearchInputs,
        state: ModelState,
        max_length: Size,
    ) -> StateT:
        """Creates the state before the first step.

        Args:
            model: the model.
            inputs: the constraints.
            state: a nested structure of tensors, the state of the model before the
                first step.
            max_length: int or int32 scalar tensor, at least the largest limit.

        Returns:
            A `SearchState`.
        """
        ...

    def advance(
        self, model: DecodingModel, inputs: SearchInputs, search_state: StateT
    ) -> StateT:
        """Computes one step.

        Args:
            model: the model.
            inputs: the constraints.
            search_state: the state before the step.

        Returns:
            The state after the step.
        """
        ...

    def result(self, model: DecodingModel, search_state: StateT) -> SearchResult:
        """Returns the hypotheses of a state.

        Args:
            model: the model.
            search_state: the state after a step.

        Returns:
            A `SearchResult`.
        """
        ...
