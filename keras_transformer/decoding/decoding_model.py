"""The protocol of a model that a search decodes."""

from typing import Any, Protocol, TypeAlias

import keras
from keras import ops

from keras_transformer.types import Size, Tensor, TokenIds

# A nest of tensors that only the model reads, such as the caches of attention.
ModelState: TypeAlias = Any


class DecodingModel(Protocol):
    """A model that predicts the next tokens of hypotheses, step by step.

    A search calls these methods and reads these ids, and uses nothing else of a model.
    A class that inherits from the protocol only has to define the ids and
    `decode_step`: the other methods fit a state whose tensors all have the shape
    `(batch, num_beams, ...)`, or a state without tensors, such as `{}`.

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

    def prepare_state(self, state: ModelState) -> ModelState:
        """Adds tensors to the state that all steps of a compiled loop share.

        Args:
            state: the state before the first step.

        Returns:
            The new state.
        """
        return state

    def reorder_state(self, state: ModelState, parents: Tensor) -> ModelState:
        """Replaces the history of each beam with the history of its parent.

        Args:
            state: the state of the model.
            parents: int32 tensor `(batch, num_beams)`; beam `i` continues beam
                `parents[:, i]`.

        Returns:
            The new state.
        """

        def reorder(x: Tensor) -> Tensor:
            index = ops.reshape(parents, (*parents.shape, *(len(x.shape) - 2) * (1,)))
            return ops.take_along_axis(x, index, axis=1)

        return keras.tree.map_structure(reorder, state)

    def extend_state(self, state: ModelState, max_length: Size) -> ModelState:
        """Makes room in the state for more steps.

        Args:
            state: the state of the model.
            max_length: int or int32 scalar tensor, number of steps, at least as many
                as the state has room for.

        Returns:
            The new state.
        """
        return state

    def take_state(self, state: ModelState, rows: Tensor) -> ModelState:
        """Selects rows of the batch.

        Args:
            state: the state of the model.
            rows: int32 tensor `(count,)`, the rows to keep.

        Returns:
            The new state.
        """
        return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), state)
