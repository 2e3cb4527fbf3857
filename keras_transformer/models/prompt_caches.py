"""The caches of a decoder-only model: prompts, and the tokens of all beams."""

from typing import NamedTuple, Self

from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.backend.slice_update import slice_update
from keras_transformer.layers import DecoderStack
from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.types import Mask, Size, Tensor


class PromptCaches(NamedTuple):
    """Keys and values of prompts of different lengths, and of the tokens of all beams.

    The prompt of a row is in the first `prompt_length` entries of a cache, once for
    all beams. The entries of the new tokens follow, in which the beams of a row are
    query positions of one attention, as in `BeamCaches`. No entry is ever moved: the
    mask `history` selects those of each beam. The last token of a prompt is the input
    of the first step, so its entry is not selected.

    Attributes:
        blocks: list with the self-attention cache of each decoder block, in a tuple.
        history: boolean tensor
            `(batch, num_beams, prompt_length + max_length * num_beams)`, the entries
            in the history of each beam.
        prompt_mask: boolean tensor `(batch, prompt_length)`, the tokens of the prompts
            without the last one.
    """

    blocks: list[tuple[KeyValues, ...]]
    history: Mask
    prompt_mask: Mask

    @classmethod
    def of(
        cls,
        decoder: DecoderStack,
        embedded: Tensor,
        prompt_mask: Mask,
        num_beams: int,
        max_length: Size,
    ) -> Self:
        """Computes the keys and values of prompts.

        Args:
            decoder: the decoder.
            embedded: float tensor `(batch, prompt_length, hidden_dim)`, the embedded
                prompts, padded at the end.
            prompt_mask: boolean tensor `(batch, prompt_length)`, the tokens without
                the last one.
            num_beams: int, number of beams.
            max_length: int or int32 scalar tensor, number of steps.

        Returns:
            `PromptCaches`.
        """
        batch, prompt_length = ops.shape(embedded)[:2]
        empty = decoder.empty_caches(None, prompt_length, batch_size=batch)
        _, filled = decoder(
            embedded,
            self_attention_cache=[cache for (cache,) in empty],
            self_attention_cache_update_index=0,
            training=False,
        )
        known = ops.broadcast_to(
            prompt_mask[:, None], (batch, num_beams, prompt_length)
        )
        caches = cls([(cache,) for cache in filled], known, prompt_mask)
        return caches.extended(max_length)

    def reordered(self, parents: Tensor) -> Self:
        """Replaces the history of each beam with that of its parent.

        Args:
            parents: int tensor `(batch, num_beams)`.

        Returns:
            `PromptCaches`.
        """
        history = ops.take_along_axis(self.history, parents[:, :, None], axis=1)
        return self._replace(history=history)

    def extended(self, max_length: Size) -> Self:
        """Makes room for more steps.

        Args:
            max_length: int or int32 scalar tensor, number of steps.

        Returns:
            `PromptCaches`.
        """
        batch, num_beams, entries = ops.shape(self.history)
        length = ops.shape(self.prompt_mask)[1] + max_length * num_beams
        more = ops.zeros((batch, num_beams, length - entries), "bool")
        return self._replace(
            blocks=[(cache.extended(length),) for (cache,) in self.blocks],
            history=ops.concatenate([self.history, more], axis=2),
        )

    def first_positions(self) -> Tensor:
        """Returns the position of the last token of each prompt, int32 `(batch,)`."""
        return int32_sum(self.prompt_mask, axis=1)

    def step(
        self, decoder: DecoderStack, x: Tensor, index: Tensor, positions: Tensor
    ) -> tuple[Tensor, Self]:
        """Decodes the newest tokens.

        Args:
            decoder: the decoder.
            x: float tensor `(batch, num_beams, hidden_dim)`, the embeddings of the
                newest tokens.
            index: int32 scalar tensor, the number of the step.
            positions: int32 tensor `(batch, num_beams)`, the positions of the newest
                tokens in their texts.

        Returns:
            The outputs `(batch, num_beams, hidden_dim)` and the new caches.
        """
        batch, num_beams, entries = ops.shape(self.history)
        prompt_length = ops.shape(self.prompt_mask)[1]
        newest = prompt_length + index * num_beams
        identity = ops.broadcast_to(
            ops.eye(num_beams, dtype="bool"), (batch, num_beams, num_beams)
        )
        history = slice_update(self.history, identity, newest, axis=2)
        entry = ops.arange(entries, dtype="int32")[None]
        steps = ops.floor_divide(entry - prompt_length, num_beams)
        cache_positions = ops.where(
            entry < prompt_length, entry, self.first_positions()[:, None] + steps
        )
        x, blocks = decoder.step(
            x,
            self.blocks,
            newest,
            attention_mask=history,
            positions=positions,
            cache_positions=cache_positions,
        )
        return x, self._replace(blocks=blocks, history=history)
