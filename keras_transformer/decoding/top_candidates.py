"""The best candidates among all continuations of a step."""

from typing import NamedTuple

from keras import ops

from keras_transformer.backend.top_k import top_k
from keras_transformer.types import Tensor


class TopCandidates(NamedTuple):
    """The highest sums, all `(batch, k)`, highest first."""

    sums: Tensor  # float
    rows: Tensor  # int32
    columns: Tensor  # int32


def top_candidates(offsets: Tensor, values: Tensor, k: int) -> TopCandidates:
    """Returns the highest sums of the offset of a row and a value of the row.

    Equal sums are ordered by row, then by column. NaN counts as `-inf`, since each
    backend orders NaN in its own way.

    Args:
        offsets: float tensor `(batch, rows)`.
        values: float tensor `(batch, rows, columns)`.
        k: int, at most `rows * columns`.

    Returns:
        `TopCandidates`.

    Example:

    >>> offsets = np.array([[0.0, 2.0]])
    >>> values = np.array([[[4.0, 3.0, 5.0], [2.0, 4.0, 2.0]]])
    >>> found = top_candidates(*map(ops.convert_to_tensor, (offsets, values)), 2)
    >>> [ops.convert_to_numpy(part).tolist() for part in found]
    [[[6.0, 5.0]], [[1, 0]], [[1, 2]]]
    """
    batch, rows, columns = ops.shape(values)
    sums = ops.reshape(values + offsets[:, :, None], (batch, rows * columns))
    sums, places = top_k(_without_nan(sums), k)
    return TopCandidates(sums, places // columns, places % columns)


def argmax(values: Tensor) -> Tensor:
    """Returns the column of the highest value of each row; of equal values the first.

    `ops.argmax` guarantees neither this order nor one of NaN, which counts as `-inf`
    here.

    Args:
        values: float tensor `(batch, rows, columns)`.

    Returns:
        int32 tensor `(batch, rows)`.

    Example:

    >>> ops.convert_to_numpy(argmax(np.array([[[1.0, 3.0, 3.0]]], "float32"))).tolist()
    [[1]]
    """
    values = _without_nan(ops.convert_to_tensor(values))
    count = ops.shape(values)[-1]
    is_highest = ops.equal(values, ops.max(values, axis=-1, keepdims=True))
    columns = ops.where(is_highest, ops.arange(count, dtype="int32"), count - 1)
    return ops.min(columns, axis=-1)


def _without_nan(values: Tensor) -> Tensor:
    return ops.where(ops.isnan(values), -float("inf"), values)
