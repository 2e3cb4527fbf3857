"""The best candidates in a large vocabulary, found by blocks."""

from typing import NamedTuple

from keras import ops

from keras_transformer.backend.top_k import top_k
from keras_transformer.types import Tensor

BLOCK = 32


class TopCandidates(NamedTuple):
    """The highest sums, all `(batch, k)`, highest first."""

    sums: Tensor  # float
    rows: Tensor  # int32
    columns: Tensor  # int32


def top_candidates(offsets: Tensor, values: Tensor, k: int) -> TopCandidates:
    """Returns the `k` highest sums of an offset `(batch, rows)` and a value of its row.

    The highest sums are in the `k` blocks of values `(batch, rows, columns)` with the
    highest maxima, so only these blocks are sorted. Equal sums are ordered by row, then
    by column. A row that holds NaN has the offset NaN and counts as `-inf`, since each
    backend orders NaN in its own way.
    """
    batch, rows, columns = ops.shape(values)
    maxima = _maxima_of_blocks(values)
    blocks = maxima.shape[-1]
    maxima = ops.reshape(maxima + offsets[:, :, None], (batch, rows * blocks))
    _, best = top_k(_without_nan(maxima), min(k, rows * blocks))
    best = ops.sort(best, axis=-1)  # orders equal sums
    row = best // blocks
    column = (best % blocks * BLOCK)[:, :, None] + ops.arange(BLOCK, dtype="int32")
    exists = column < columns
    places = row[:, :, None] * columns + ops.minimum(column, columns - 1)
    candidates = best.shape[1] * BLOCK
    places = ops.reshape(places, (batch, candidates))
    values = ops.reshape(values, (batch, rows * columns))
    sums = ops.take_along_axis(values, places, axis=1)
    added = ops.repeat(ops.take_along_axis(offsets, row, axis=1), BLOCK, axis=1)
    exists = ops.reshape(exists, (batch, candidates))
    sums = ops.where(exists, _without_nan(sums + added), -float("inf"))
    sums, chosen = top_k(sums, k)
    places = ops.take_along_axis(places, chosen, axis=1)
    return TopCandidates(sums, places // columns, places % columns)


def argmax(values: Tensor) -> Tensor:
    """Returns the first column with the highest value, int32, of each row.

    `ops.argmax` guarantees neither this order nor one of NaN, which counts as `-inf`
    here.
    """
    values = _without_nan(ops.convert_to_tensor(values))
    count = ops.shape(values)[-1]
    is_highest = ops.equal(values, ops.max(values, axis=-1, keepdims=True))
    columns = ops.where(is_highest, ops.arange(count, dtype="int32"), count - 1)
    return ops.min(columns, axis=-1)


def _without_nan(values: Tensor) -> Tensor:
    return ops.where(ops.isnan(values), -float("inf"), values)


def _maxima_of_blocks(values: Tensor) -> Tensor:
    """Returns the maxima of every `BLOCK` columns; the last block may be shorter."""
    batch, rows, columns = ops.shape(values)
    whole = columns // BLOCK * BLOCK
    maxima = []
    if whole:
        shape = (batch, rows, whole // BLOCK, BLOCK)
        maxima.append(ops.max(ops.reshape(values[:, :, :whole], shape), axis=-1))
    if whole < columns:
        maxima.append(ops.max(values[:, :, whole:], axis=-1, keepdims=True))
    return ops.concatenate(maxima, axis=-1) if len(maxima) > 1 else maxima[0]
