"""The one place that knows how fast the backends multiply few rows."""

from typing import Any

from keras import ops

from keras_transformer.backend.products import product

MOST = 2


def are_few(*sizes: int | None) -> bool:
    """Whether so many rows, the product of `sizes`, are known to be few."""
    count = 1
    for size in sizes:
        count *= MOST + 1 if size is None else size
    return count <= MOST


def times_transposed(x: Any, embeddings: Any, kernel: Any = None) -> Any:
    """`x` times the transposed embeddings, which few rows can do without transposing.

    Args:
        x: float tensor `(batch, length, hidden_dim)`.
        embeddings: float tensor `(vocabulary_size, hidden_dim)`.
        kernel: float tensor `(hidden_dim, vocabulary_size)`, the embeddings transposed
            for many such products, if they are. XLA leaves out what it is not used
            for: a number of rows that TensorFlow learns at the call is known to XLA.

    Returns:
        Tensor `(batch, length, vocabulary_size)`.
    """
    sizes = x.shape[:2]
    if are_few(*sizes) and 0 not in sizes:
        return _one_by_one(x, embeddings, *sizes)
    if kernel is None:
        return product(x, ops.transpose(embeddings))
    if None not in sizes:
        return product(x, kernel)
    batch, length = ops.shape(x)[:2]
    return ops.cond(
        ops.equal(batch * length, 1),
        lambda: _for_any_size(_one_by_one(x[:1, :1], embeddings, 1, 1), batch, length),
        lambda: ops.matmul(x, kernel),
    )


def _one_by_one(x: Any, embeddings: Any, batch: int, length: int) -> Any:
    rows = ops.reshape(x, (batch * length, x.shape[-1]))
    products = [ops.matmul(embeddings, rows[i]) for i in range(batch * length)]
    return ops.reshape(ops.stack(products), (batch, length, embeddings.shape[0]))


def _for_any_size(x: Any, batch: Any, length: Any) -> Any:
    """The shape that the other branch has, as long as nothing is known of it."""
    return ops.broadcast_to(x, (batch, length, x.shape[-1]))
