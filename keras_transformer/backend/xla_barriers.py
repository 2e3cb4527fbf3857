"""Optimization barriers that keep XLA from fusions that cost more than they save."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator

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
