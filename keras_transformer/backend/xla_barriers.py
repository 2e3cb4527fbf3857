"""Optimization barriers that keep XLA from fusions that cost more than they save."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_transformer.types import Tensor

_XLA: contextvars.ContextVar[bool | None] = contextvars.ContextVar("xla", default=None)


def under_xla() -> contextlib.AbstractContextManager[None]:
    """Declares that XLA compiles the functions that TensorFlow traces in this context.

    Returns:
        A context manager.
    """
    return _tracing(True)


def without_xla() -> contextlib.AbstractContextManager[None]:
    """Declares that XLA does not compile what TensorFlow traces in this context.

    Returns:
        A context manager.
    """
    return _tracing(False)


@contextlib.contextmanager
def _tracing(is_xla: bool) -> Iterator[None]:
    token = _XLA.set(is_xla)
    try:
        yield
    finally:
        _XLA.reset(token)


def is_without_xla() -> bool:
    """Returns whether TensorFlow traces in the context of `without_xla`."""
    return _XLA.get() is False


def fusion_barrier(x: Tensor) -> Tensor:
    """Returns `x` and keeps XLA in TensorFlow from fusing it into its consumers.

    XLA fuses the reshaping of a kernel, and the operations that compute a single row,
    into the product of both. The fusion is a plain loop that takes ten times as long
    as the product. XLA removes the barrier after the fusions.

    Args:
        x: tensor of any shape.

    Returns:
        `x`.
    """
    return _optimization_barrier()(x) if _XLA.get() else x


@functools.cache
def _optimization_barrier() -> Callable[[Tensor], Tensor]:
    """Returns TensorFlow's operation, or the identity if TensorFlow has none.

    `tf.raw_ops` lacks the operation. Without it results are the same, and slower.
    """
    try:
        from tensorflow.compiler.tf2xla.python.xla import optimization_barrier
    except ImportError:
        return lambda x: x
    return lambda x: optimization_barrier(x)[0]


def materialization_barrier(x: Tensor) -> Tensor:
    """Returns `x` and keeps XLA in JAX from computing it once per consumer.

    XLA on a CPU fuses sums and products into every operation that uses them. A
    residual stream is a sum over all previous blocks, as its gradient is over all
    following blocks, so the work would grow with the square of the depth: a quarter of
    the time of a training step with eight blocks. XLA does not duplicate divisions.
    The divisor 1 is hidden by a barrier until the fusions are chosen; then XLA removes
    both.

    Args:
        x: float tensor of any shape.

    Returns:
        `x`.

    Example:

    >>> materialization_barrier(np.array([0.1, -3.0], "float32")).tolist()
    [0.10000000149011612, -3.0]
    """
    if keras.backend.backend() != "jax":
        return x
    return _jax_materialization_barrier(x)


def _jax_materialization_barrier(x: Any) -> Any:
    import jax

    if jax.default_backend() != "cpu":
        return x
    return x / jax.lax.optimization_barrier(jax.numpy.ones((), x.dtype))
