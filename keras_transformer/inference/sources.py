"""Sources of a user, token ids or arrays, alone and with targets, in batches."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from keras import ops

from keras_transformer.inference.sequence_model import SequenceInputs, SequenceModel
from keras_transformer.inference.source_arrays import (
    array_rows,
    indices_by_shape,
    stacked,
)
from keras_transformer.inference.token_ids import (
    Rows,
    Sequences,
    check_rows,
    pad_rows,
    power_of_two,
    token_rows,
)
from keras_transformer.types import TokenIds
from keras_transformer_runtime.arguments import check_ints

# Lists of token ids without padding, or arrays.
SourceRows: TypeAlias = list[Any]


def source_rows(model: SequenceModel, sources: Sequences, argument: str) -> SourceRows:
    """Converts sources to lists of token ids without padding, or to arrays.

    A source without tokens becomes `model.empty_source`.
    """
    if model.source_spec is not None:
        arrays = array_rows(model.source_spec, sources, argument)
        if model.source_spec.shape is None and arrays:
            _build_model(model, arrays[0])
        return arrays
    pad = model.pad_token_id
    rows = token_rows(sources, argument, model.source_tokenizer, pad)
    return [row or [*model.empty_source] for row in rows]


def _build_model(model: SequenceModel, array: np.ndarray) -> None:
    """Builds a model by a call, since the shape of its sources was unknown."""
    source = ops.convert_to_tensor(array[None])
    start = ops.full((1, 1), model.start_token_id, "int32")
    model({"encoder_token_ids": source, "decoder_token_ids": start})


def check_sources(model: SequenceModel, rows: SourceRows, argument: str) -> None:
    """Checks the token ids of sources against the limits of a model."""
    if model.source_spec is None:
        size, limit = model.source_vocabulary_size, model.max_source_length
        check_rows(rows, argument, "source", size, limit, model.length_arguments[0])


def source_lengths(model: SequenceModel, rows: SourceRows) -> list[int]:
    """Returns the number of real positions of each source."""
    if model.source_spec is None:
        return [*map(len, rows)]
    masks = [model.source_mask(ops.convert_to_tensor(row[None])) for row in rows]
    return [int(ops.convert_to_numpy(mask).sum()) for mask in masks]


def batch_of_sources(
    model: SequenceModel, rows: SourceRows, batch_size: int
) -> np.ndarray:
    """Pads lists of token ids to an int32 batch, or stacks arrays of one shape."""
    if model.source_spec is not None:
        return stacked(rows, batch_size)
    return pad_rows(rows, batch_size, model.max_source_length, model.pad_token_id)


class Batch(NamedTuple):
    """The indices of the sources of a batch, and the number of its rows."""

    indices: list[int]
    size: int


def batch_indices(
    model: SequenceModel, rows: SourceRows, keys: Sequence[Any], batch_size: int
) -> Iterator[Batch]:
    """Groups sources, sorted by `keys`, into batches whose sizes are powers of two.

    Only arrays of one shape share a batch.
    """
    groups = [[*range(len(rows))]]
    if model.source_spec is not None:
        groups = indices_by_shape(rows)
    for group in groups:
        order = sorted(group, key=lambda index: keys[index])
        size = min(batch_size, power_of_two(len(order)))
        for start in range(0, len(order), size):
            yield Batch(order[start : start + size], size)


class Pairs(NamedTuple):
    """Sources and targets as lists of token ids without padding, or arrays."""

    sources: SourceRows
    targets: Rows


class PairBatch(NamedTuple):
    """A batch of pairs."""

    indices: list[int]  # of the pairs in the first rows; the others are padding
    inputs: SequenceInputs
    target_token_ids: TokenIds  # int32 (batch, target_length), padded


def token_pairs(
    model: SequenceModel,
    sources: Sequences,
    targets: Sequences,
    add_end: bool = True,  # whether targets that are texts end with the end token
) -> Pairs:
    """Converts sources and targets to lists of token ids, and checks them."""
    pad, limit = model.pad_token_id, model.max_target_length
    rows = source_rows(model, sources, "sources")
    check_sources(model, rows, "sources")
    tokenizer, size = model.target_tokenizer, model.target_vocabulary_size
    target_rows = token_rows(targets, "targets", tokenizer, pad, add_end)
    limit_name = model.length_arguments[1]
    check_rows(target_rows, "targets", "target", size, limit, limit_name)
    if len(rows) != len(target_rows):
        raise ValueError(
            "`targets` must have one entry for each source; received "
            f"{len(target_rows)} targets and {len(rows)} sources."
        )
    if model.source_spec is not None:
        return Pairs(rows, target_rows)
    for index, (source, target) in enumerate(zip(rows, target_rows, strict=True)):
        longest = model.max_output_lengths(len(source), sys.maxsize)
        if len(target) > longest:
            raise ValueError(
                f"`targets` must have at most {longest} tokens after a source of "
                f"{len(source)} tokens (`{limit_name}={limit}`); received "
                f"{len(target)} tokens in row {index}. Shorten or split it, or build "
                f"the model with a larger `{limit_name}`."
            )
    return Pairs(rows, target_rows)


def pair_batches(
    model: SequenceModel, pairs: Pairs, batch_size: int
) -> Iterator[PairBatch]:
    """Groups pairs of similar lengths into batches whose sizes are powers of two."""
    check_ints(1, batch_size=batch_size)
    sources, targets = pairs
    pad, limit = model.pad_token_id, model.max_target_length
    keys = [*zip(map(len, targets), map(len, sources), strict=True)]
    for indices, size in batch_indices(model, sources, keys, batch_size):
        chosen = [targets[i] for i in indices]
        shifted = [[model.start_token_id, *row][: len(row)] for row in chosen]
        encoder = batch_of_sources(model, [sources[i] for i in indices], size)
        inputs: SequenceInputs = {
            "encoder_token_ids": ops.convert_to_tensor(encoder),
            "decoder_token_ids": ops.convert_to_tensor(
                pad_rows(shifted, size, limit, pad)
            ),
        }
        labels = ops.convert_to_tensor(pad_rows(chosen, size, limit, pad))
        yield PairBatch(indices, inputs, labels)
