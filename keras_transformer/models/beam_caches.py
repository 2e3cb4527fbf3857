"""The caches of a decoder whose beams share keys and values."""

from typing import NamedTuple, Self

from keras import ops

from keras_transformer.backend.slice_update import slice_update
from keras_transformer.layers import DecoderStack
from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.types import Mask, Size, Tensor


class BeamCaches(NamedTuple):
    """Keys and values of all beams, in one cache per sentence.

    The beams of a sentence are query positions of one attention. Their keys and values
    share a self-attention cache of `max_length * num_beams` entries, which is never
    reordered: the mask `ancestors` selects the history of each beam. Keys and values of
    the source exist once per sentence.

    Attributes:
        blocks: list with the `KeyValues` of each decoder block: those of its
            self-attention and those of the source.
        ancestors: boolean tensor `(batch, num_beams, max_length * num_beams)`, the
            entries in the history of each beam.
    """

    blocks: list[tuple[KeyValues, ...]]
    ancestors: Mask

    @classmethod
    def empty(
        cls, decoder: DecoderStack, encoded: Tensor, num_beams: int, max_length: Size
    ) -> Self:
        """Creates empty caches.

        Args:
            decoder: the decoder.
            encoded: float tensor `(batch, source_length, hidden_dim)`.
            num_beams: int, number of beams.
            max_length: int or int32 scalar tensor, number of steps.

        Returns:
            `BeamCaches`.
        """
        entries = max_length * num_beams
        shape = (ops.shape(encoded)[0], num_beams, entries)
        return cls(decoder.empty_caches(encoded, entries), ops.zeros(shape, "bool"))

    def reordered(self, parents: Tensor) -> Self:
        """Replaces the history of each beam with that of its parent.

        Args:
            parents: int tensor `(batch, num_beams)`.

        Returns:
            `BeamCaches`.
        """
        ancestors = ops.take_along_axis(self.ancestors, parents[:, :, None], axis=1)
        return self._replace(ancestors=ancestors)

    def extended(self, max_length: Size) -> Self:
        """Makes room for more steps.

        Args:
            max_length: int or int32 scalar tensor, number of steps.

        Returns:
            `BeamCaches`.
        """
        batch, num_beams, entries = ops.shape(self.ancestors)
        more = ops.zeros((batch, num_beams, max_length * num_beams - entries), "bool")
        return self._replace(
            blocks=[
                (self_cache.extended(max_length * num_beams), *source)
                for self_cache, *source in self.blocks
            ],
            ancestors=ops.concatenate([self.ancestors, more], axis=2),
        )

    def step(
        self,
        decoder: DecoderStack,
        x: Tensor,
        index: Tensor,
        source_mask: Mask,
        return_attention: bool,
    ) -> tuple[Tensor, Self, Tensor | None]:
        """Decodes the newest tokens.

        Args:
            decoder: the decoder.
            x: float tensor `(batch, num_beams, hidden_dim)`, the embeddings of the
                newest tokens.
            index: int32 scalar tensor, their position.
            source_mask: boolean tensor `(batch, source_length)`.
            return_attention: whether to return the attention to the source.

        Returns:
            The outputs `(batch, num_beams, hidden_dim)`, the new caches, and the
            cross-attention of the last block, float32
            `(batch, num_beams, source_length)`, a mean over its heads, or `None`.
        """
        batch, num_beams, entries = ops.shape(self.ancestors)
        identity = ops.broadcast_to(
            ops.eye(num_beams, dtype="bool"), (batch, num_beams, num_beams)
        )
        ancestors = slice_update(self.ancestors, identity, index * num_beams, axis=2)
        x, blocks, *scores = decoder.step(
            x,
            self.blocks,
            index * num_beams,
            attention_mask=ancestors,
            encoder_padding_mask=source_mask,
            positions=ops.broadcast_to(index, (num_beams,)),
            cache_positions=ops.floor_divide(
                ops.arange(entries, dtype="int32"), num_beams
            ),
            return_attention_scores=return_attention,
        )
        caches = self._replace(blocks=blocks, ancestors=ancestors)
        if not scores:
            return x, caches, None
        cross = ops.cast(scores[0]["cross_attention"], "float32")
        return x, caches, ops.mean(cross, axis=1)
