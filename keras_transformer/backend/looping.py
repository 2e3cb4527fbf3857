"""The one place that makes a loop quick where a backend runs it step by step."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

# Steps that run as they are before one is recorded: recording costs as much as ten.
PATIENCE = 8

_RECORDINGS: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "recordings", default=None
)


@contextlib.contextmanager
def recording(recordings: dict[Any, Any]) -> Iterator[None]:
    """Lets PyTorch's loops record their steps, and find those recorded before.

    Args:
        recordings: a dictionary, empty at first: of one function, whose steps are the
            same whenever the shapes of all tensors are.
    """
    token = _RECORDINGS.set(recordings)
    try:
        yield
    finally:
        _RECORDINGS.reset(token)


def while_loop(
    goes_on: Callable[..., Any],
    advance: Callable[..., Any],
    values: Any,
    constants: Any,
) -> Any:
    """`ops.while_loop`, the steps of which take what does not change as well.

    TensorFlow and JAX compile the loop. On PyTorch half of the time of a step goes by
    in Python; within `recording`, the operations of one step are recorded with
    `make_fx` and then repeated by themselves. A step that cannot be recorded, as it
    asks for the value of a tensor, runs as it is.

    Args:
        goes_on: takes the values, returns a bool scalar tensor.
        advance: takes the constants and the values, returns the next values. It uses
            no other tensors but the weights of one model.
        values: tuple of nests of tensors.
        constants: nest of tensors.

    Returns:
        The last values.
    """
    recordings = _RECORDINGS.get()
    if recordings is None:
        return ops.while_loop(goes_on, lambda *now: advance(constants, *now), values)
    while goes_on(*values):
        leaves = keras.tree.flatten((constants, *values))
        recorded = _recorded(recordings, advance, (constants, *values), leaves)
        if recorded is None:
            values = advance(constants, *values)
        else:
            values = keras.tree.pack_sequence_as(values, recorded(*leaves))
    return values


def _recorded(
    recordings: dict[Any, Any], advance: Callable[..., Any], tree: Any, leaves: Any
) -> Callable[..., Any] | None:
    """The step as a function of leaves of these shapes, if it is recorded by now."""
    key = tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)
    found = recordings.get(key, 0)
    if isinstance(found, int):
        found = found + 1 if found < PATIENCE else _record(advance, tree, leaves)
        recordings[key] = found
    return None if isinstance(found, int) else found


def _record(advance: Callable[..., Any], tree: Any, leaves: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    def step(*leaves: Any) -> list[Any]:
        return keras.tree.flatten(advance(*keras.tree.pack_sequence_as(tree, leaves)))

    trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)
    try:
        return trace(*leaves)
    except Exception:  # as the step has it, or because it cannot be recorded
        return None
