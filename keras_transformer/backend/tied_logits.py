"""Logits of an output layer that shares the weights of an embedding."""

import keras
from keras import ops

from keras_transformer.backend.matmul import matmul
from keras_transformer.types import Tensor

MAX_ROWS = 2  # From 3 rows on, one product with the transposed matrix is faster.


def has_few_rows(*sizes: int | None) -> bool:
    """Returns whether rows are faster one by one than with the transposed matrix.

    They are on PyTorch, if there are one or two. XLA gains nothing from it.

    Args:
        *sizes: ints, whose product is the number of rows, or `None` for an unknown
            size.
    """
    if keras.backend.backend() != "torch" or None in sizes:
        return False
    count = 1
    for size in sizes:
        count *= size or 0
    return 0 < count <= MAX_ROWS


def tied_logits(x: Tensor, embeddings: Tensor, kernel: Tensor | None = None) -> Tensor:
    """Multiplies `x` by the transposed embeddings.

    A few rows are multiplied one by one, as products of a matrix and a vector, which
    read the embeddings as they are stored. More rows need the transposed matrix.

    Args:
        x: float tensor `(batch, length, hidden_dim)`.
        embeddings: float tensor `(vocabulary_size, hidden_dim)`.
        kernel: float tensor `(hidden_dim, vocabulary_size)`, the transposed embeddings
            if they are computed once for many products.

    Returns:
        Tensor `(batch, length, vocabulary_size)`.
    """
    if has_few_rows(*x.shape[:2]):
        batch, length, hidden_dim = x.shape
        rows = ops.reshape(x, (batch * length, hidden_dim))
        logits = [ops.matmul(embeddings, rows[i]) for i in range(batch * length)]
        return ops.reshape(ops.stack(logits), (batch, length, embeddings.shape[0]))
    return matmul(x, ops.transpose(embeddings) if kernel is None else kernel)
