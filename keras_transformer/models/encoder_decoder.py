"""The base class of encoder-decoder models: their steps of decoding."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import keras
from keras import ops

from keras_transformer.inference.protocols import SequenceInputs
from keras_transformer.layers import DecoderStack, padding_mask
from keras_transformer.models.beam_caches import BeamCaches
from keras_transformer.models.generative_model import GenerativeModel
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


class EncoderDecoderState(TypedDict, total=False):
    """The state of decoding.

    Attributes:
        caches: keys and values.
        source_mask: boolean tensor `(batch, source_length)`, the real tokens.
        attention: float32 tensor `(batch, num_beams, source_length)`, the attention of
            the newest tokens, a mean over the heads of the last block.
        output_kernel: float tensor `(hidden_dim, vocabulary_size)`, the transposed
            embeddings.
    """

    caches: BeamCaches
    source_mask: Mask
    attention: Tensor
    output_kernel: Tensor


class EncoderDecoder(GenerativeModel):
    """Base class of models with an encoder of the sources and a decoder.

    Attributes:
        decoder: the decoder.
        num_decoder_layers: int, number of decoder blocks.
        tie_embeddings: `"none"` if the output has a separate matrix.
        output_bias: whether the logits have a bias.
        target_embedding: the embedding of the target tokens.
    """

    decoder: DecoderStack
    num_decoder_layers: int
    tie_embeddings: str
    output_bias: bool
    target_embedding: keras.layers.Embedding

    @abc.abstractmethod
    def encode(
        self, encoder_token_ids: TokenIds, training: bool | None = None
    ) -> Tensor:
        """Runs the encoder."""

    @abc.abstractmethod
    def embed_target(
        self,
        token_ids: TokenIds,
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embeds target tokens and adds their positions."""

    @abc.abstractmethod
    def compute_logits(self, decoded: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Computes the logits from the outputs of the decoder."""

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Prints the layers as `keras.Model.summary` does, and the tied output."""
        super().summary(line_length, positions, print_fn, **kwargs)
        if self.tie_embeddings != "none":  # Otherwise it is a row of the table.
            size = self.target_vocabulary_size
            bias = f" and a bias ({size:,} params)" if self.output_bias else ""
            (print_fn or print)(
                f" Logits: (None, None, {size}), weights of "
                f"{self.target_embedding.name}{bias}"
            )

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> EncoderDecoderState:
        """Encodes the sources; see `GenerativeModel.start_decoding`."""
        encoder_token_ids = ops.convert_to_tensor(encoder_token_ids)
        encoded = self.encode(encoder_token_ids, training=False)
        state: EncoderDecoderState = {
            "caches": BeamCaches.empty(self.decoder, encoded, num_beams, max_length),
            "source_mask": padding_mask(encoder_token_ids, self.pad_token_id),
        }
        if return_attention:
            batch, source_length = ops.shape(encoder_token_ids)
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

    def prepare_state(self, state: EncoderDecoderState) -> EncoderDecoderState:
        """Adds the transposed weights of the embedding, if the output shares them."""
        if self.tie_embeddings == "none":
            return state
        return {**state, "output_kernel": self.transposed_embeddings()}

    def transposed_embeddings(self) -> Tensor:
        """Returns the output layer's kernel if it shares the embedding's weights.

        Returns:
            Tensor `(hidden_dim, vocabulary_size)` in the compute dtype.
        """
        embeddings = ops.cast(self.target_embedding.embeddings, self.compute_dtype)
        return ops.transpose(embeddings)

    def reorder_state(
        self, state: EncoderDecoderState, parents: Tensor
    ) -> EncoderDecoderState:
        """Replaces the history of each beam; see `DecodingModel.reorder_state`."""
        return {**state, "caches": state["caches"].reordered(parents)}

    def extend_state(
        self, state: EncoderDecoderState, max_length: Size
    ) -> EncoderDecoderState:
        """Makes room for more steps; see `DecodingModel.extend_state`."""
        return {**state, "caches": state["caches"].extended(max_length)}

    def take_state(
        self, state: EncoderDecoderState, rows: Tensor
    ) -> EncoderDecoderState:
        """Selects rows of the batch; see `DecodingModel.take_state`."""
        rest = {name: x for name, x in state.items() if name != "output_kernel"}
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), rest)
        return {**state, **taken}

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
