"""The one place that knows of XLA in TensorFlow, and keeps it from some fusions."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_XLA: contextvars.ContextVar[bool | None] = contextvars.ContextVar("xla", default=None)


def under_xla() -> contextlib.AbstractContextManager[None]:
    """Says that what TensorFlow traces in this context is compiled by XLA."""
    return _traced(True)


def without_xla() -> contextlib.AbstractContextManager[None]:
    """Says that XLA does not compile what TensorFlow traces in this context."""
    return _traced(False)


@contextlib.contextmanager
def _traced(by_xla: bool) -> Iterator[None]:
    token = _XLA.set(by_xla)
    try:
        yield
    finally:
        _XLA.reset(token)


def is_without_xla() -> bool:
    """Tells whether XLA surely does not compile what TensorFlow traces now."""
    return _XLA.get() is False


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
