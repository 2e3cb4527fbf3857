"""The base class of encoder-decoder models: their steps of decoding."""

import abc
from typing import NamedTuple, TypedDict

from keras import ops

from keras_transformer.inference.protocols import SequenceInputs
from keras_transformer.layers.masking import align_rows, restore_order
from keras_transformer.models.beam_caches import BeamCaches
from keras_transformer.models.cached_decoder import CachedDecoder, DecoderState
from keras_transformer.types import Mask, Size, Tensor, TokenIds


class AttentionScores(TypedDict):
    """Attention scores of a call, a tensor for each layer."""

    encoder: list[Tensor]  # (batch, num_heads, source_length, source_length)
    decoder: list[Tensor]  # (batch, num_heads, target_length, target_length)
    cross: list[Tensor]  # (batch, num_heads, target_length, source_length)


class OutputsWithScores(NamedTuple):
    """The outputs of a call with `return_attention_scores=True`."""

    logits: Tensor
    attention_scores: AttentionScores


class EncoderDecoderState(DecoderState, total=False):
    """The state of decoding.

    Attributes:
        source_mask: boolean tensor `(batch, source_length)`, the real tokens.
        attention: float32 tensor `(batch, num_beams, source_length)`, the attention of
            the newest tokens, a mean over the heads of the last block.
    """

    source_mask: Mask
    attention: Tensor


class EncoderDecoder(CachedDecoder):
    """Base class of models with an encoder of the sources and a decoder.

    Attributes:
        num_decoder_layers: int, number of decoder blocks.
    """

    num_decoder_layers: int

    @abc.abstractmethod
    def encode_with_mask(
        self, encoder_token_ids: TokenIds, training: bool | None = None
    ) -> tuple[Tensor, Mask]:
        """Runs the encoder, and returns the real positions of the sources as well.

        Args:
            encoder_token_ids: as in `encode`, padded at the end, or the result of
                `prepare_sources`.
            training: bool, whether dropout is applied.

        Returns:
            A pair of the outputs `(batch, source_length, hidden_dim)` in the compute
            dtype and the boolean tensor `(batch, source_length)`, `True` = real.
        """

    def encode(
        self, encoder_token_ids: TokenIds, training: bool | None = None
    ) -> Tensor:
        """Runs the encoder.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`; or arrays
                `(batch, ...)`, if the model has a `source_embedding`.
            training: bool, whether dropout is applied.

        Returns:
            Tensor `(batch, source_length, hidden_dim)` in the compute dtype.
        """
        if self.source_spec is not None:
            return self.encode_with_mask(encoder_token_ids, training)[0]
        token_ids, shifts = align_rows(encoder_token_ids, self.pad_token_id)
        encoded, _ = self.encode_with_mask(token_ids, training)
        return restore_order(encoded, shifts, 1)

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> EncoderDecoderState:
        """Encodes the sources; see `GenerativeModel.start_decoding`."""
        sources = self.prepare_sources(encoder_token_ids)
        encoded, mask = self.encode_with_mask(sources, training=False)
        state: EncoderDecoderState = {
            "caches": BeamCaches.empty(self.decoder, encoded, num_beams, max_length),
            "source_mask": mask,
        }
        if return_attention:
            batch, source_length = ops.shape(mask)
            shape = (batch, num_beams, source_length)
            state["attention"] = ops.zeros(shape, "float32")
        return state

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: EncoderDecoderState
    ) -> tuple[Tensor, EncoderDecoderState]:
        """Computes the logits of the next tokens; see `GenerativeModel.decode_step`."""
        positions = ops.broadcast_to(index, (ops.shape(token_ids)[1],))
        x = self.embed_target(token_ids, positions, training=False)
        x, caches, attention = state["caches"].step(
            self.decoder, x, index, state["source_mask"], "attention" in state
        )
        state = {**state, "caches": caches}
        if attention is not None:
            state["attention"] = attention
        return self.compute_logits(x, state.get("output_kernel")), state

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Computes the attention to the source; see `GenerativeModel`."""
        inputs: SequenceInputs = {
            "encoder_token_ids": encoder_token_ids,
            "decoder_token_ids": decoder_token_ids,
        }
        index = _check_layer(layer, self.num_decoder_layers)
        _, scores = self(inputs, training=False, return_attention_scores=True)
        return ops.mean(ops.cast(scores["cross"][index], "float32"), axis=1)


def _check_layer(layer: int | None, count: int) -> int:
    if layer is None:
        return max(count - 2, 0)
    if not -count <= layer < count:
        raise ValueError(
            f"`layer` must be from {-count} to {count - 1}, since the decoder has "
            f"{count} layers; received `layer={layer}`."
        )
    return layer
