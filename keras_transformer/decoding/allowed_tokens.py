"""A search that considers only some tokens of the vocabulary."""

from typing import NamedTuple, TypedDict

from keras import ops

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.decoding_model import DecodingModel, ModelState
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.loop import run_search
from keras_transformer.decoding.search import Search, SearchInputs, SearchResult
from keras_transformer.types import Mask, Size, Tensor, TokenIds


class AllowedTokens(NamedTuple):
    """The tokens that the search of each sequence may choose.

    Attributes:
        token_ids: int32 tensor `(columns,)`, different tokens, which the columns of
            `mask` stand for: first those of `special_tokens`, in their order. The model
            computes no logits of other tokens. `(0,)` = the columns are all tokens of
            the vocabulary.
        mask: boolean tensor `(batch, columns)`, the allowed tokens.
    """

    token_ids: TokenIds
    mask: Mask


def special_tokens(model: DecodingModel) -> list[int]:
    """Returns the tokens that `AllowedTokens.token_ids` begins with.

    Args:
        model: the model.

    Returns:
        List of different ints.
    """
    ids = (model.pad_token_id, model.end_token_id, model.start_token_id)
    return [*dict.fromkeys(map(int, ids))]


def computes_few_logits(search: Search, model: DecodingModel) -> bool:
    """Returns whether the model computes only the logits of the allowed tokens.

    The random numbers of samples and the logits processors depend on all token ids.

    Args:
        search: the search.
        model: the model; if it can do so, its attribute `limits_logits` is `True`, and
            it has the method `limit_state`, as `CachedDecoder` does.
    """
    if not isinstance(search, BeamSearch | GreedySearch) or search.logits_processors:
        return False
    return getattr(model, "limits_logits", False)


def run_limited_search(
    search: Search,
    model: DecodingModel,
    inputs: SearchInputs,
    state: ModelState,
    max_length: Size,
    capacity: Size | None,
    allowed: AllowedTokens,
) -> SearchResult:
    """Searches among the allowed tokens; see `run_search`.

    Args:
        search: the search.
        model: the model.
        inputs: the constraints, whose tokens are allowed.
        state: a nest of tensors, the state of the model before the first step.
        max_length: int or int32 scalar tensor, at least the greatest limit.
        capacity: int or int32 scalar tensor, number of steps that `state` has room for.
        allowed: the allowed tokens.

    Returns:
        A `SearchResult`. The probabilities are normalised over the allowed tokens.
    """
    limited = LimitedModel(model, allowed.token_ids.shape[0] != 0)
    first = limited.start(state, allowed)
    if not limited.renumbers:
        return run_search(search, limited, inputs, first, max_length, capacity)
    inputs = inputs._replace(
        prefixes=_columns(allowed.token_ids, inputs.prefixes),
        phrases=_columns(allowed.token_ids, inputs.phrases),
    )
    result = run_search(search, limited, inputs, first, max_length, capacity)
    token_ids = ops.take(allowed.token_ids, result.token_ids, axis=0)
    return result._replace(token_ids=token_ids)


class LimitedState(TypedDict, total=False):
    """The state of a `LimitedModel`."""

    model: ModelState
    token_ids: TokenIds  # see `AllowedTokens`
    mask: Mask  # likewise
    attention: Tensor  # that of the model, if it has it


class LimitedModel(DecodingModel):
    """A model whose probabilities are normalised over the allowed tokens.

    Args:
        model: the model.
        renumbers: bool, whether its tokens are numbers of columns of `AllowedTokens`.
    """

    def __init__(self, model: DecodingModel, renumbers: bool):
        self._model = model
        self.renumbers = renumbers
        tokens = (model.pad_token_id, model.end_token_id, model.start_token_id)
        if renumbers:
            columns = special_tokens(model)
            pad, end, start = (columns.index(int(token)) for token in tokens)
            tokens = (pad, end, start)
        self.pad_token_id, self.end_token_id, self.start_token_id = tokens
        self.forces_end_token = getattr(model, "forces_end_token", True)

    def start(self, state: ModelState, allowed: AllowedTokens) -> LimitedState:
        """Creates the state before the first step.

        Args:
            state: the state of the model.
            allowed: the allowed tokens.

        Returns:
            A `LimitedState`.
        """
        first: LimitedState = {"token_ids": allowed.token_ids, "mask": allowed.mask}
        return self._with(first, state)

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: LimitedState
    ) -> tuple[Tensor, LimitedState]:
        """Computes the logits of the next tokens; `-inf` of those not allowed."""
        if self.renumbers:
            token_ids = ops.take(state["token_ids"], token_ids, axis=0)
        logits, own = self._model.decode_step(token_ids, index, state["model"])
        logits = ops.cast(logits, "float32")
        logits = ops.where(state["mask"][:, None], logits, -float("inf"))
        return logits, self._with(state, own)

    def prepare_state(self, state: LimitedState) -> LimitedState:
        """Prepares the state of the model; see `DecodingModel.prepare_state`."""
        own = self._model.prepare_state(state["model"])
        if self.renumbers:
            own = self._model.limit_state(own, state["token_ids"])  # type: ignore[attr-defined]
        return self._with(state, own)

    def reorder_state(self, state: LimitedState, parents: Tensor) -> LimitedState:
        """Reorders the state of the model; see `DecodingModel.reorder_state`."""
        return self._with(state, self._model.reorder_state(state["model"], parents))

    def extend_state(self, state: LimitedState, max_length: Size) -> LimitedState:
        """Extends the state of the model; see `DecodingModel.extend_state`."""
        return self._with(state, self._model.extend_state(state["model"], max_length))

    def take_state(self, state: LimitedState, rows: Tensor) -> LimitedState:
        """Selects rows of the batch; see `DecodingModel.take_state`."""
        mask = ops.take(state["mask"], rows, axis=0)
        own = self._model.take_state(state["model"], rows)
        return self._with({**state, "mask": mask}, own)

    def _with(self, state: LimitedState, own: ModelState) -> LimitedState:
        """Returns the state with another one of the model."""
        state = {**state, "model": own}
        if isinstance(own, dict) and "attention" in own:
            state["attention"] = own["attention"]
        return state


def _columns(token_ids: TokenIds, tokens: TokenIds) -> TokenIds:
    """Returns the columns of tokens, in the same shape."""
    are_equal = ops.equal(ops.expand_dims(tokens, -1), token_ids)
    return ops.argmax(ops.cast(are_equal, "int32"), axis=-1)
