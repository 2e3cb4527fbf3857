"""The protocol of a model that a search decodes, and the state between its steps."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import keras
from keras import ops

from keras_transformer.types import Size, Tensor, TokenIds

# A nested structure of tensors, such as the caches. A search reads only `"attention"`.
ModelState: TypeAlias = Any


@dataclass(frozen=True)
class StateAxes:
    """The axes of a tensor of the state of a model.

    Attributes:
        has_rows: bool, whether the first axis is the batch. `False` = the tensor is
            the same for all sequences, such as transposed weights.
        has_beams: bool, whether the second axis are the beams, whose histories the
            tensor holds. The search reorders them. `False` = the beams share it, or
            every step replaces it.
        steps_axis: int, the axis with room for the steps; `None` = there is none.
        entries_per_step: int, number of entries of a step along `steps_axis`.
    """

    has_rows: bool = True
    has_beams: bool = False
    steps_axis: int | None = None
    entries_per_step: int = 1


class DecodingModel(Protocol):
    """A model that predicts the next tokens of hypotheses, step by step.

    A search calls these methods and reads these ids, and uses nothing else of a model.
    A class that inherits from the protocol only has to define the ids and
    `decode_step`, if all tensors of its state have the shape `(batch, num_beams, ...)`,
    or if it has no tensors, such as `{}`.

    Attributes:
        start_token_id: int, the token that precedes every hypothesis.
        end_token_id: int, the token that ends a hypothesis.
        pad_token_id: int, fills the result; a search never chooses it.
        forces_end_token: bool, whether a hypothesis that reaches the maximum length
            has the end token there. `False` = it is cut off after any token.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, SearchInputs, run_search
    >>> class Countdown(DecodingModel):
    ...     pad_token_id, end_token_id, start_token_id = 0, 1, 4
    ...
    ...     def decode_step(self, token_ids, index, state):
    ...         return ops.one_hot(token_ids - 1, 5), state
    >>> inputs = SearchInputs.of_batch(1, max_length=9)
    >>> result = run_search(GreedySearch(), Countdown(), inputs, {}, max_length=9)
    >>> ops.convert_to_numpy(result.token_ids)[0, 0, :4].tolist()
    [3, 2, 1, 0]
    """

    start_token_id: int
    end_token_id: int
    pad_token_id: int
    forces_end_token: bool = True

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: ModelState
    ) -> tuple[Tensor, ModelState]:
        """Computes the logits of the next tokens.

        Args:
            token_ids: int32 tensor `(batch, num_beams)`, the newest tokens.
            index: int32 scalar tensor, their position; that of the start token is 0.
            state: the state of the model.

        Returns:
            Logits, float tensor `(batch, num_beams, vocabulary_size)`, and the new
            state, whose tensors have the shapes and dtypes of `state`. If the search
            has `needs_attention`, the state has the key `"attention"`: float32
            `(batch, num_beams, source_length)`, the attention of the newest tokens.
        """
        ...

    def state_axes(self, state: ModelState) -> Any:
        """Returns a structure like `state` with the `StateAxes` of each tensor.

        Args:
            state: the state of the model. By default, all its tensors have the shape
                `(batch, num_beams, ...)`.
        """
        return keras.tree.map_structure(lambda _: StateAxes(has_beams=True), state)


def reorder_beams(
    model: DecodingModel, state: ModelState, parents: Tensor
) -> ModelState:
    """Continues beam `parents[:, i]` as beam `i`; parents: int32 (batch, num_beams)."""

    def reorder(x: Tensor, axes: StateAxes) -> Tensor:
        if not axes.has_beams:
            return x
        index = parents[(..., *(len(x.shape) - 2) * (None,))]
        return ops.take_along_axis(x, index, axis=1)

    return keras.tree.map_structure(reorder, state, model.state_axes(state))


def select_rows(model: DecodingModel, state: ModelState, rows: Tensor) -> ModelState:
    """Selects rows of the batch; rows: int32 (count,)."""

    def select(x: Tensor, axes: StateAxes) -> Tensor:
        return ops.take(x, rows, axis=0) if axes.has_rows else x

    return keras.tree.map_structure(select, state, model.state_axes(state))


def extend_steps(model: DecodingModel, state: ModelState, steps: Size) -> ModelState:
    """Makes room for `steps` more steps."""

    def extend(x: Tensor, axes: StateAxes) -> Tensor:
        axis = axes.steps_axis
        if axis is None:
            return x
        shape: list[Size] = [*ops.shape(x)]
        shape[axis] = steps * axes.entries_per_step
        return ops.concatenate([x, ops.zeros(shape, x.dtype)], axis=axis)

    return keras.tree.map_structure(extend, state, model.state_axes(state))
