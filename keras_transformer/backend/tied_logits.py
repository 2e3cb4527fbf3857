"""Logits of an output layer that shares the weights of an embedding."""

from keras import ops

from keras_transformer.backend.matmul import matmul
from keras_transformer.types import Size, Tensor

MAX_ROWS = 2  # From 3 rows on, one product with the transposed matrix is faster.


def has_few_rows(*sizes: int | None) -> bool:
    """Returns whether the number of rows, the product of `sizes`, is known to be small.

    Args:
        *sizes: ints, or `None` for an unknown size.
    """
    count = 1
    for size in sizes:
        count *= MAX_ROWS + 1 if size is None else size
    return count <= MAX_ROWS


def tied_logits(x: Tensor, embeddings: Tensor, kernel: Tensor | None = None) -> Tensor:
    """Multiplies `x` by the transposed embeddings.

    A few rows are multiplied one by one, as products of a matrix and a vector, which
    read the embeddings as they are stored. More rows need the transposed matrix.

    Args:
        x: float tensor `(batch, length, hidden_dim)`.
        embeddings: float tensor `(vocabulary_size, hidden_dim)`.
        kernel: float tensor `(hidden_dim, vocabulary_size)`, the transposed embeddings
            if they are computed once for many products. XLA removes it if it is not
            used, since XLA knows sizes that TensorFlow knows only when it runs.

    Returns:
        Tensor `(batch, length, vocabulary_size)`.
    """
    sizes = x.shape[:2]
    if has_few_rows(*sizes) and 0 not in sizes:
        return _row_by_row(x, embeddings, *sizes)
    if kernel is None:
        return matmul(x, ops.transpose(embeddings))
    if None not in sizes:
        return matmul(x, kernel)
    batch, length = ops.shape(x)[:2]
    return ops.cond(
        ops.equal(batch * length, 1),
        lambda: _with_sizes(_row_by_row(x[:1, :1], embeddings, 1, 1), batch, length),
        lambda: ops.matmul(x, kernel),
    )


def _row_by_row(x: Tensor, embeddings: Tensor, batch: int, length: int) -> Tensor:
    rows = ops.reshape(x, (batch * length, x.shape[-1]))
    logits = [ops.matmul(embeddings, rows[i]) for i in range(batch * length)]
    return ops.reshape(ops.stack(logits), (batch, length, embeddings.shape[0]))


def _with_sizes(x: Tensor, batch: Size, length: Size) -> Tensor:
    """Gives `x` sizes that are unknown in the trace, as in the other branch."""
    return ops.broadcast_to(x, (batch, length, x.shape[-1]))
