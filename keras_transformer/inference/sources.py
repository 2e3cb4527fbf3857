"""Sources of a user, token ids or arrays, alone and with targets, in batches."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from keras import ops

from keras_transformer.inference.protocols import SequenceInputs, SequenceModel
from keras_transformer.inference.source_arrays import (
    array_rows,
    numbers_by_shape,
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

    Args:
        model: the model.
        sources: texts or token ids, see `token_rows`; or arrays, see `array_rows`.
        argument: name of the argument, for error messages.

    Returns:
        Lists of ints; those of a source without tokens are `model.empty_source`. For a
        model with `source_spec`, arrays.

    Raises:
        ValueError: see `token_rows` and `array_rows`.
    """
    if model.source_spec is not None:
        arrays = array_rows(model.source_spec, sources, argument)
        if model.source_spec.shape is None and arrays:
            start = ops.full((1, 1), model.start_token_id, "int32")
            first = ops.convert_to_tensor(arrays[0][None])
            model({"encoder_token_ids": first, "decoder_token_ids": start})  # builds it
        return arrays
    pad = model.pad_token_id
    rows = token_rows(sources, argument, model.source_tokenizer, pad)
    return [row or [*model.empty_source] for row in rows]


def check_sources(model: SequenceModel, rows: SourceRows, argument: str) -> None:
    """Checks the token ids of sources against the limits of a model.

    Args:
        model: the model.
        rows: lists of token ids, or arrays, which have been checked.
        argument: name of the argument, for error messages.

    Raises:
        ValueError: see `check_rows`.
    """
    if model.source_spec is None:
        size, limit = model.source_vocabulary_size, model.max_source_length
        check_rows(rows, argument, "source", size, limit, model.length_arguments[0])


def source_lengths(model: SequenceModel, rows: SourceRows) -> list[int]:
    """Returns the numbers of real positions of sources.

    Args:
        model: the model.
        rows: lists of token ids, or arrays.

    Returns:
        Ints, one for each source.
    """
    if model.source_spec is None:
        return [*map(len, rows)]
    masks = [model.source_mask(ops.convert_to_tensor(row[None])) for row in rows]
    return [int(ops.convert_to_numpy(mask).sum()) for mask in masks]


def batch_of_sources(
    model: SequenceModel, rows: SourceRows, batch_size: int
) -> np.ndarray:
    """Pads lists of token ids to a batch, or stacks arrays of one shape.

    Args:
        model: the model.
        rows: lists of token ids, or arrays.
        batch_size: int, rows of the batch.

    Returns:
        int32 array `(batch_size, source_length)`, or an array `(batch_size, ...)`.
    """
    if model.source_spec is not None:
        return stacked(rows, batch_size)
    return pad_rows(rows, batch_size, model.max_source_length, model.pad_token_id)


class Batch(NamedTuple):
    """The numbers of the sources of a batch, and the number of its rows."""

    numbers: list[int]
    size: int


def batches_of_numbers(
    model: SequenceModel, rows: SourceRows, keys: Sequence[Any], batch_size: int
) -> Iterator[Batch]:
    """Groups sources into batches, whose sizes are powers of two.

    Args:
        model: the model.
        rows: lists of token ids, or arrays, which share a batch if they have one shape.
        keys: what the sources are sorted by.
        batch_size: int, maximum number of sources of a batch.

    Yields:
        `Batch`es.
    """
    groups = [[*range(len(rows))]]
    if model.source_spec is not None:
        groups = numbers_by_shape(rows)
    for group in groups:
        order = sorted(group, key=lambda number: keys[number])
        size = min(batch_size, power_of_two(len(order)))
        for start in range(0, len(order), size):
            yield Batch(order[start : start + size], size)


class Pairs(NamedTuple):
    """Sources and targets as lists of token ids without padding, or arrays."""

    sources: SourceRows
    targets: Rows


class PairBatch(NamedTuple):
    """A batch of pairs.

    Attributes:
        numbers: list of ints, the numbers of the pairs in the first rows; the other
            rows are padding.
        inputs: the inputs of the model.
        target_token_ids: int32 tensor `(batch, target_length)`, padded.
    """

    numbers: list[int]
    inputs: SequenceInputs
    target_token_ids: TokenIds


def token_pairs(
    model: SequenceModel,
    sources: Sequences,
    targets: Sequences,
    add_end: bool = True,
) -> Pairs:
    """Converts sources and targets to lists of token ids, and checks them.

    Args:
        model: the model.
        sources: a text or a list of texts, if the model has tokenizers; or token ids:
            a list of lists of ints, or an int array `(batch, source_length)` with
            padding; or arrays, if the model has a `source_spec`.
        targets: as many entries as `sources`, of the same forms.
        add_end: whether to append the end token to the ids of targets that are texts.

    Returns:
        `Pairs`.

    Raises:
        ValueError: if the model does not accept them, or their numbers differ.
    """
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
    for number, (source, target) in enumerate(zip(rows, target_rows, strict=True)):
        longest = model.max_steps(len(source), sys.maxsize)
        if len(target) > longest:
            raise ValueError(
                f"`targets` must have at most {longest} tokens after a source of "
                f"{len(source)} tokens (`{limit_name}={limit}`); received "
                f"{len(target)} tokens in row {number}. Shorten or split it, or build "
                f"the model with a larger `{limit_name}`."
            )
    return Pairs(rows, target_rows)


def pair_batches(
    model: SequenceModel, pairs: Pairs, batch_size: int
) -> Iterator[PairBatch]:
    """Groups pairs of similar lengths into batches, whose sizes are powers of two.

    Args:
        model: the model.
        pairs: the token ids.
        batch_size: int, maximum number of pairs of a batch.

    Yields:
        `PairBatch`es.

    Raises:
        ValueError: if `batch_size` is not an int of at least 1.
    """
    check_ints(1, batch_size=batch_size)
    sources, targets = pairs
    pad, limit = model.pad_token_id, model.max_target_length
    keys = [*zip(map(len, targets), map(len, sources), strict=True)]
    for numbers, size in batches_of_numbers(model, sources, keys, batch_size):
        chosen = [targets[i] for i in numbers]
        shifted = [[model.start_token_id, *row][: len(row)] for row in chosen]
        encoder = batch_of_sources(model, [sources[i] for i in numbers], size)
        inputs: SequenceInputs = {
            "encoder_token_ids": ops.convert_to_tensor(encoder),
            "decoder_token_ids": ops.convert_to_tensor(
                pad_rows(shifted, size, limit, pad)
            ),
        }
        labels = ops.convert_to_tensor(pad_rows(chosen, size, limit, pad))
        yield PairBatch(numbers, inputs, labels)
