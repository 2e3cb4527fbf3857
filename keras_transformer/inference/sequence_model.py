"""Base class of the models that generation, scoring and alignment use."""

from typing import TYPE_CHECKING, TypedDict

import keras
from keras import ops

from keras_transformer.decoding import (
    BeamSearch,
    ModelState,
    OutputLength,
    Search,
    StateAxes,
)
from keras_transformer.decoding.lengths import (
    DEFAULT_MAX_LENGTH,
    default_lengths,
    output_lengths,
    smaller,
)
from keras_transformer.inference.source_arrays import (
    ArraySpec,
    Sources,
)
from keras_transformer.layers import padding_mask
from keras_transformer.layers.masking import move_padding_to_end
from keras_transformer.types import Mask, Size, SizeT, Tensor, TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class SequenceInputs(TypedDict):
    """The inputs of a call of a model."""

    # int32 (batch, source_length), padded; or arrays (batch, ...)
    encoder_token_ids: TokenIds
    # int32 (batch, target_length), after the start token, padded
    decoder_token_ids: TokenIds


class SequenceModel(keras.Model):
    """Base class of models from sequences to sequences of tokens, step by step.

    `GenerativeModel` documents the attributes, and adds what the users of a model call.
    """

    source_tokenizer: "Tokenizer | None"
    target_tokenizer: "Tokenizer | None"
    source_vocabulary_size: int
    target_vocabulary_size: int
    max_source_length: int | None
    max_target_length: int | None
    pad_token_id: int
    start_token_id: int
    end_token_id: int
    forces_end_token: bool = True
    output_length_ratio: float = 1.0
    default_search: Search = BeamSearch()
    has_cross_attention: bool = True
    returns_attention_scores: bool = False
    empty_source: tuple[int, ...] = ()
    length_arguments: tuple[str, str] = ("max_source_length", "max_target_length")

    @property
    def source_spec(self) -> ArraySpec | None:
        """The arrays that are sources in place of token ids; `None` = token ids."""
        return None

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> ModelState:
        """Encodes the sources and creates the state of the first decoding step.

        Args:
            encoder_token_ids: the result of `prepare_sources`: int32 tensor
                `(batch, source_length)`, padded at the end; or arrays with their
                embedding.
            num_beams: int, number of hypotheses of each source.
            max_length: int or int32 scalar tensor, number of steps that the state has
                room for.
            return_attention: bool, whether each step adds the attention of the newest
                tokens to the state.

        Returns:
            A nested structure of tensors; with `return_attention=True` a dictionary
            with the key `"attention"`, float32 `(batch, num_beams, source_length)`: the
            cross-attention of the last block, a mean over its heads.
        """
        raise NotImplementedError

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: ModelState
    ) -> tuple[Tensor, ModelState]:
        """Computes the logits of the next tokens.

        Args:
            token_ids: int tensor `(batch, num_beams)`, the newest tokens.
            index: int32 scalar tensor, their position; that of the start token is 0.
            state: the state of the model.

        Returns:
            Logits `(batch, num_beams, target_vocabulary_size)` and the new state.
        """
        raise NotImplementedError

    def state_axes(self, state: ModelState) -> object:
        """Returns a structure like `state` with the `StateAxes` of each tensor."""
        return keras.tree.map_structure(lambda _: StateAxes(has_beams=True), state)

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Computes the attention of each target token to the source tokens.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`, padded.
            decoder_token_ids: int tensor `(batch, target_length)`, the targets after
                the start token.
            layer: int, index of the decoder block, as in a list; see `align`.

        Returns:
            float32 tensor `(batch, target_length, source_length)`, a mean over the
            heads.

        Raises:
            ValueError: if there is no such layer, or the model has no cross-attention.
        """
        check_cross_attention(self, "`cross_attention`")
        raise NotImplementedError

    def prepare_sources(self, sources: Sources) -> Sources:
        """Converts sources to the inputs of `start_decoding`.

        Args:
            sources: int array or tensor `(batch, source_length)`, padded; or arrays
                `(batch, ...)`, if the model has a `source_spec`.

        Returns:
            int32 tensor `(batch, source_length)`, padded at the end; or the arrays with
            their embedding, also if `sources` are the result of this method.
        """
        token_ids = ops.convert_to_tensor(sources, "int32")
        return move_padding_to_end(token_ids, self.pad_token_id)[0]

    def source_mask(self, sources: Sources) -> Mask:
        """Returns which positions of the sources are tokens, not padding.

        Args:
            sources: int tensor `(batch, source_length)`, padded; or arrays
                `(batch, ...)`, if the model has a `source_spec`; or the result of
                `prepare_sources`.

        Returns:
            Boolean tensor `(batch, source_length)`.
        """
        if self.source_spec is not None:
            mask: Mask = self.prepare_sources(sources).mask
            return mask
        return padding_mask(sources, self.pad_token_id)

    def max_output_lengths(
        self, source_lengths: SizeT, max_length: OutputLength | None = None
    ) -> SizeT:
        """Returns the maximum output lengths, as `max_target_length` limits them.

        Args:
            source_lengths: int or int32 tensor, lengths of sources in tokens.
            max_length: int or `RelativeLength`; see `generate`.

        Returns:
            int or int32 tensor, of the type and shape of `source_lengths`.
        """
        if max_length is None:
            steps = default_lengths(
                source_lengths, self.output_length_ratio, DEFAULT_MAX_LENGTH
            )
        else:
            steps = output_lengths(max_length, source_lengths)
        limit = self.max_target_length
        return steps if limit is None else smaller(steps, limit)

    def max_output_length(
        self, source_length: SizeT, max_length: OutputLength | None = None
    ) -> SizeT:
        """Returns the maximum output length of a batch.

        Args:
            source_length: int or int32 scalar tensor, length of the padded sources.
            max_length: int or `RelativeLength`; see `generate`.

        Returns:
            int or int32 scalar tensor: at least `max_output_lengths` of each source.
        """
        return self.max_output_lengths(source_length, max_length)


def check_cross_attention(model: SequenceModel, argument: str) -> None:
    """Raises `ValueError` if a model has no cross-attention."""
    if not model.has_cross_attention:
        raise ValueError(
            f"{argument} requires a model with cross-attention, such as `Seq2Seq`; "
            f"received a `{type(model).__name__}`, which has no source."
        )
