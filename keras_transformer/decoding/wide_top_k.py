"""The best few of very many candidates, without looking at each of them twice."""

from typing import Any

from keras import ops

from keras_transformer.backend.top_k import top_k

BLOCK = 32


def top_candidates(offsets: Any, values: Any, k: int) -> tuple[Any, Any, Any]:
    """Finds the highest sums of a row's offset and one of its values.

    The `k` highest are in the `k` blocks of values with the highest maxima, so that
    only these are sorted. Of equal sums the first row comes first, and of one row the
    first column.

    Args:
        offsets: float tensor `(batch, rows)`.
        values: float tensor `(batch, rows, columns)`.
        k: int, at most `rows * columns`.

    Returns:
        The sums, and their int32 rows and columns, `(batch, k)`, highest first.

    Example:

    >>> offsets = np.array([[0.0, 2.0]])
    >>> values = np.array([[[4.0, 3.0, 5.0], [2.0, 4.0, 2.0]]])
    >>> found = top_candidates(*map(ops.convert_to_tensor, (offsets, values)), 2)
    >>> [ops.convert_to_numpy(part).tolist() for part in found]
    [[[6.0, 5.0]], [[1, 0]], [[1, 2]]]
    """
    batch, rows, columns = ops.shape(values)
    maxima = _maxima_of_blocks(values)
    blocks = maxima.shape[-1]
    maxima = ops.reshape(maxima + offsets[:, :, None], (batch, rows * blocks))
    _, best = top_k(maxima, min(k, rows * blocks))
    best = ops.sort(best, axis=-1)  # of equal sums the first is to come first
    row = best // blocks
    column = (best % blocks * BLOCK)[:, :, None] + ops.arange(BLOCK, dtype="int32")
    exists = column < columns
    places = row[:, :, None] * columns + ops.minimum(column, columns - 1)
    candidates = best.shape[1] * BLOCK
    places = ops.reshape(places, (batch, candidates))
    values = ops.reshape(values, (batch, rows * columns))
    sums = ops.take_along_axis(values, places, axis=1)
    own = ops.repeat(ops.take_along_axis(offsets, row, axis=1), BLOCK, axis=1)
    exists = ops.reshape(exists, (batch, candidates))
    sums, chosen = top_k(ops.where(exists, sums + own, -float("inf")), k)
    places = ops.take_along_axis(places, chosen, axis=1)
    return sums, places // columns, places % columns


def highest(values: Any) -> Any:
    """Finds the column of the highest value of each row, of equal ones the first.

    Args:
        values: float tensor `(batch, rows, columns)`.

    Returns:
        int32 tensor `(batch, rows)`.

    Example:

    >>> ops.convert_to_numpy(highest(np.array([[[1.0, 3.0, 3.0]]], "float32"))).tolist()
    [[1]]
    """
    batch, rows, columns = ops.shape(values)
    values = ops.reshape(values, (batch * rows, 1, columns))
    _, _, column = top_candidates(ops.zeros((batch * rows, 1)), values, 1)
    return ops.reshape(column, (batch, rows))


def _maxima_of_blocks(values: Any) -> Any:
    """The highest of each `BLOCK` columns; the last block may be shorter."""
    batch, rows, columns = ops.shape(values)
    whole = columns // BLOCK * BLOCK
    maxima = []
    if whole:
        shape = (batch, rows, whole // BLOCK, BLOCK)
        maxima.append(ops.max(ops.reshape(values[:, :, :whole], shape), axis=-1))
    if whole < columns:
        maxima.append(ops.max(values[:, :, whole:], axis=-1, keepdims=True))
    return ops.concatenate(maxima, axis=-1) if len(maxima) > 1 else maxima[0]
