"""A user's pairs of sources and targets, in batches of few shapes."""

from collections.abc import Iterator
from typing import Any

from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.inference.token_ids import (
    check_rows,
    pad_rows,
    power_of_two,
    token_rows,
)

Rows = list[list[int]]


def pair_rows(model: Any, sources: Any, targets: Any) -> tuple[Rows, Rows]:
    """Makes lists of token ids of sources and targets, and checks them.

    Args:
        model: a `Seq2Seq`.
        sources: a text or a list of texts, if the model has tokenizers; or token ids:
            a list of lists of ints, or an int array `(batch, source_length)` with
            padding.
        targets: as many, likewise.

    Returns:
        Two lists of lists of ints; those of texts end with the end token.

    Raises:
        ValueError: if the model cannot take them, or there are more of one.
    """
    source_rows = _rows(model, "source", sources)
    target_rows = _rows(model, "target", targets)
    if len(source_rows) != len(target_rows):
        raise ValueError(
            "`targets` must have one entry for each source; received "
            f"{len(target_rows)} targets and {len(source_rows)} sources."
        )
    return source_rows, target_rows


def _rows(model: Any, side: str, inputs: Any) -> Rows:
    argument = f"{side}s"
    tokenizer = getattr(model, f"{side}_tokenizer")
    rows = token_rows(inputs, argument, tokenizer, model.pad_token_id)
    size = getattr(model, f"{side}_vocabulary_size")
    limit = getattr(model, f"max_{side}_length")
    check_rows(rows, argument, side, size, limit)
    return rows


def pair_batches(
    model: Any, sources: Rows, targets: Rows, batch_size: int
) -> Iterator[tuple[list[int], list[Any]]]:
    """Puts pairs into batches, sorted by length, whose sizes are powers of two.

    Args:
        model: a `Seq2Seq`.
        sources: lists of token ids.
        targets: as many lists of token ids.
        batch_size: int, most pairs of a batch.

    Yields:
        The numbers of the pairs in the first rows of a batch, and three int32 tensors
        `(batch, length)`: encoder, decoder and target token ids. Other rows are
        padding. The decoder's ids are the target's behind the start token.

    Raises:
        ValueError: if `batch_size` is no int or less than 1.
    """
    check_ints(1, batch_size=batch_size)
    order = sorted(
        range(len(targets)), key=lambda i: (len(targets[i]), len(sources[i]))
    )
    size = min(batch_size, power_of_two(len(order)))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows = [sources[i] for i in chosen], [targets[i] for i in chosen]
        yield chosen, _batch(model, *rows, size)


def _batch(model: Any, sources: Rows, targets: Rows, size: int) -> list[Any]:
    starts = [[model.start_token_id, *row][: len(row)] for row in targets]
    limited = [
        (sources, model.max_source_length),
        (starts, model.max_target_length),
        (targets, model.max_target_length),
    ]
    return [
        ops.convert_to_tensor(pad_rows(rows, size, limit, model.pad_token_id))
        for rows, limit in limited
    ]
