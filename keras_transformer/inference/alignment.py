"""Alignments of target tokens with source tokens, from the cross-attention."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.inference.sequence_model import (
    SequenceInputs,
    SequenceModel,
    check_cross_attention,
)
from keras_transformer.inference.sources import pair_batches, token_pairs
from keras_transformer.inference.token_ids import Sequences
from keras_transformer.types import Tensor


class Alignment(NamedTuple):
    """The alignment of a target with its source.

    Attributes:
        attention: float32 array `(target_length, source_length)`, the attention to
            each source token in the prediction of each target token, a mean over the
            heads; the sum of a row is 1. End tokens are included. If the sources are
            arrays, their tokens are the positions of the `source_embedding`.
        positions: int32 array `(target_length,)`, for each target token the position
            of the source token with the most attention, except the end token.
    """

    attention: np.ndarray
    positions: np.ndarray


class BatchAlignment(NamedTuple):
    """The alignments of a batch."""

    attention: Tensor  # float32 (batch, target_length, source_length)
    positions: Tensor  # int32 (batch, target_length)


class Aligner:
    """Aligns pairs with one model, and caches the compiled functions."""

    def __init__(self, model: SequenceModel):
        self._model = model
        self._compiled: dict[int | None, Callable[..., BatchAlignment]] = {}

    def align(
        self,
        sources: Sequences,
        targets: Sequences,
        layer: int | None,
        batch_size: int,
    ) -> list[Alignment]:
        """Aligns pairs; see `GenerativeModel.align`."""
        check_cross_attention(self._model, "`align`")
        compiled = self._compile(layer)
        pairs = token_pairs(self._model, sources, targets)
        are_arrays = self._model.source_spec is not None
        if not are_arrays and not all(pairs.sources):
            raise ValueError(
                "`sources` must have at least one token each, the end token; received "
                f"no token in row {pairs.sources.index([])}."
            )
        found: dict[int, Alignment] = {}
        for batch in pair_batches(self._model, pairs, batch_size):
            attention, positions = map(ops.convert_to_numpy, compiled(batch.inputs))
            for row, index in enumerate(batch.indices):
                length = len(pairs.targets[index])
                width = None if are_arrays else len(pairs.sources[index])
                found[index] = Alignment(
                    attention[row, :length, :width].copy(),
                    positions[row, :length].copy(),
                )
        return [found[index] for index in range(len(pairs.sources))]

    def _compile(self, layer: int | None) -> Callable[..., BatchAlignment]:
        model = self._model
        if layer not in self._compiled:

            def align(inputs: SequenceInputs) -> BatchAlignment:
                return align_batch(model, inputs, layer)

            self._compiled[layer] = compile_function(align, model)
        return self._compiled[layer]


def align_batch(
    model: SequenceModel, inputs: SequenceInputs, layer: int | None = None
) -> BatchAlignment:
    """Aligns a batch by the attention of block `layer`; all backends can trace it."""
    token_ids = inputs["encoder_token_ids"]
    attention = model.cross_attention(token_ids, inputs["decoder_token_ids"], layer)
    is_token = model.source_mask(token_ids)
    indices = ops.arange(ops.shape(is_token)[1], dtype="int32")
    words = is_token
    if model.source_spec is None:
        last = ops.max(ops.where(is_token, indices, -1), axis=1, keepdims=True)
        ends = ops.equal(token_ids, model.end_token_id)
        ends = ops.logical_and(ends, ops.equal(indices, last))
        words = ops.logical_and(is_token, ops.logical_not(ends))
    first = ops.argmax(ops.cast(is_token, "int32"), axis=1)[:, None]
    words = ops.logical_or(words, ops.equal(indices, ops.cast(first, "int32")))
    positions = ops.argmax(ops.where(words[:, None], attention, -1.0), axis=-1)
    return BatchAlignment(attention, ops.cast(positions, "int32"))
