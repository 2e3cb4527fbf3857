"""Loops whose steps PyTorch records once and then replays."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_transformer.types import Tensor

# Steps that run eagerly before one is recorded: recording takes as long as ten steps.
EAGER_STEPS = 8

# Of each combination of shapes, dtypes and devices: the number of eager steps so far,
# the recorded step, or `None` if the step cannot be recorded.
Recordings: TypeAlias = dict[Any, int | Callable[..., list[Tensor]] | None]

_RECORDINGS: contextvars.ContextVar[Recordings | None] = contextvars.ContextVar(
    "recordings", default=None
)


@contextlib.contextmanager
def recording(recordings: Recordings) -> Iterator[None]:
    """Lets `while_loop` record its steps on PyTorch, and replay recorded ones.

    Args:
        recordings: dictionary, empty at first. It belongs to one function, whose steps
            must depend on nothing but the shapes, dtypes and devices of the tensors.

    Yields:
        `None`.
    """
    token = _RECORDINGS.set(recordings)
    try:
        yield
    finally:
        _RECORDINGS.reset(token)


def while_loop(
    cond: Callable[..., Tensor],
    body: Callable[..., Any],
    loop_vars: tuple[Any, ...],
    constants: Any,
) -> Any:
    """Runs `ops.while_loop` with constants that each step receives.

    TensorFlow and JAX compile the loop. PyTorch spends half of the time of a step in
    Python. In the context of `recording`, `make_fx` records the operations of one
    step, and later steps replay them. A step that reads the value of a tensor cannot be
    recorded and runs eagerly.

    Args:
        cond: function of the loop variables that returns a bool scalar tensor.
        body: function of the constants and the loop variables that returns the next
            loop variables. Of other tensors it uses only the weights of one model.
        loop_vars: tuple of nests of tensors.
        constants: nest of tensors.

    Returns:
        The loop variables after the last step.
    """
    recordings = _RECORDINGS.get()
    if recordings is None:
        return ops.while_loop(cond, lambda *now: body(constants, *now), loop_vars)
    while cond(*loop_vars):
        leaves = keras.tree.flatten((constants, *loop_vars))
        step = _recorded_step(recordings, body, (constants, *loop_vars), leaves)
        if step is None:
            loop_vars = body(constants, *loop_vars)
        else:
            loop_vars = keras.tree.pack_sequence_as(loop_vars, step(*leaves))
    return loop_vars


def _recorded_step(
    recordings: Recordings,
    body: Callable[..., Any],
    structure: Any,
    leaves: list[Any],
) -> Callable[..., list[Tensor]] | None:
    """Returns the recorded step for these shapes, or `None` to run the step eagerly."""
    key = tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)
    entry = recordings.get(key, 0)
    if isinstance(entry, int):
        is_due = entry >= EAGER_STEPS
        entry = _record(body, structure, leaves) if is_due else entry + 1
        recordings[key] = entry
    return None if isinstance(entry, int) else entry


def _record(
    body: Callable[..., Any], structure: Any, leaves: list[Any]
) -> Callable[..., list[Tensor]] | None:
    """Records a step as a graph of its operations.

    `torch.export` and `torch.compile`, which are public, guard against more than
    shapes and take seconds for a step. Without `make_fx` all steps run eagerly.
    """

    def step(*leaves: Any) -> list[Tensor]:
        nest = keras.tree.pack_sequence_as(structure, leaves)
        return keras.tree.flatten(body(*nest))

    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)
        return trace(*leaves)
    except Exception:  # An error of the step itself is raised again when it runs.
        return None
