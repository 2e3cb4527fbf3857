"""The one place that knows how fast the backends multiply few rows."""

from typing import Any

import keras
from keras import ops

MOST = 2


def smallest_rows() -> int:
    """Rows that a batch has at least.

    XLA in TensorFlow multiplies one row much slower than two, as it fuses what makes
    the row into a plain loop.
    """
    return 2 if keras.backend.backend() == "tensorflow" else 1


def are_few(*sizes: int | None) -> bool:
    """Whether so many rows, the product of `sizes`, are known to be few."""
    count = 1
    for size in sizes:
        count *= MOST + 1 if size is None else size
    return count <= MOST


def times_transposed(x: Any, embeddings: Any) -> Any:
    """`x` times the transposed embeddings, which are not transposed for it.

    Args:
        x: float tensor `(batch, length, hidden_dim)` with few rows.
        embeddings: float tensor `(vocabulary_size, hidden_dim)`.

    Returns:
        Tensor `(batch, length, vocabulary_size)`.
    """
    batch, length, width = x.shape
    rows = ops.reshape(x, (batch * length, width))
    products = [ops.matmul(embeddings, rows[i]) for i in range(batch * length)]
    return ops.reshape(ops.stack(products), (batch, length, embeddings.shape[0]))
