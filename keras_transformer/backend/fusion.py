"""The one place that keeps XLA in TensorFlow from fusing what is faster apart."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_XLA: contextvars.ContextVar[bool] = contextvars.ContextVar("xla", default=False)


@contextlib.contextmanager
def under_xla() -> Iterator[None]:
    """Says that what TensorFlow traces in this context is compiled by XLA."""
    token = _XLA.set(True)
    try:
        yield
    finally:
        _XLA.reset(token)


def apart(x: Any) -> Any:
    """Returns `x`, which XLA in TensorFlow does not fuse into what uses it.

    It would fuse the reshaping of a kernel into the product with a single row, and
    what makes the row besides, as a plain loop that takes ten times as long. This is
    a barrier, which is dropped after the fusions.

    Args:
        x: tensor of any shape.

    Returns:
        `x`.
    """
    if not _XLA.get():
        return x
    from tensorflow.compiler.tf2xla.python.xla import optimization_barrier

    return optimization_barrier(x)[0]
