"""Compilation of functions of a model for inference, and of their loops."""

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import keras
from keras import ops

from keras_transformer.backend.processes import values_here
from keras_transformer.types import Tensor

P = ParamSpec("P")
T = TypeVar("T")

# Steps that run eagerly before one is recorded: recording takes as long as ten steps.
EAGER_STEPS = 8

# Of each combination of shapes, dtypes and devices: the number of eager steps so far,
# the recorded step, or `None` if the step cannot be recorded.
Recordings: TypeAlias = dict[Any, int | Callable[..., list[Tensor]] | None]

_RECORDINGS: contextvars.ContextVar[Recordings | None] = contextvars.ContextVar(
    "recordings", default=None
)


def compile_function(
    function: Callable[P, T], model: keras.layers.Layer
) -> Callable[P, T]:
    """Compiles a function of tensors that calls `model`, for inference.

    Each new shape is compiled once. The weights are read at every call, so training can
    continue; after `enable_lora` or `quantize` the function is compiled again. It must
    use no variables except those of the model. PyTorch runs it eagerly, and records the
    steps of each `while_loop`.
    """
    compilers = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    return compilers[keras.backend.backend()](function, model)


def _tensorflow(function: Callable[P, T], model: keras.layers.Layer) -> Callable[P, T]:
    import tensorflow as tf

    weights: Sequence[keras.Variable] = []
    traced: Any = None

    def compiled(*arguments: P.args, **named: P.kwargs) -> T:
        nonlocal weights, traced
        current = model.weights
        if traced is None or _differ(current, weights):
            # A trace keeps the variables that it has read.
            weights = current
            # AutoGraph takes a long time and rewrites nothing that `keras.ops` need.
            # TensorFlow counts the traces of a function by its code and warns if there
            # are many, but not for `functools.partial`.
            traced = tf.function(
                functools.partial(function),
                jit_compile=True,
                reduce_retracing=True,
                autograph=False,
            )
        return traced(*arguments, **named)

    return compiled


def _jax(function: Callable[P, T], model: keras.layers.Layer) -> Callable[P, T]:
    import jax

    @jax.jit
    def stateless(values: list[Tensor], *arguments: P.args, **named: P.kwargs) -> T:
        mapping = zip(model.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)):
            return function(*arguments, **named)

    def compiled(*arguments: P.args, **named: P.kwargs) -> T:
        return stateless(values_here(model.variables), *arguments, **named)

    return compiled


def _torch(function: Callable[P, T], model: keras.layers.Layer) -> Callable[P, T]:
    import torch

    weights: Sequence[keras.Variable] = []
    recordings: Recordings = {}

    @torch.no_grad()
    def compiled(*arguments: P.args, **named: P.kwargs) -> T:
        nonlocal weights
        current = model.weights
        if _differ(current, weights):
            weights = current
            recordings.clear()
        token = _RECORDINGS.set(recordings)
        try:
            return function(*arguments, **named)
        finally:
            _RECORDINGS.reset(token)

    return compiled


def _differ(
    weights: Sequence[keras.Variable], others: Sequence[keras.Variable]
) -> bool:
    return list(map(id, weights)) != list(map(id, others))


def while_loop(
    cond: Callable[..., Tensor],
    body: Callable[..., Any],  # of other tensors, uses the weights of one model
    loop_vars: tuple[Any, ...],
    constants: Any,
) -> Any:
    """Runs `ops.while_loop` with constants that each step receives.

    PyTorch spends half the time of a step in Python. In a compiled function, `make_fx`
    therefore records the operations of one step, and later steps replay them. A step
    that reads the value of a tensor cannot be recorded and runs eagerly.
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
    """Records a step as a graph of its operations."""
    # `torch.export` and `torch.compile`, which are public, guard against more than
    # shapes and take seconds for a step. Without `make_fx` all steps run eagerly.

    def step(*leaves: Any) -> list[Tensor]:
        nest = keras.tree.pack_sequence_as(structure, leaves)
        return keras.tree.flatten(body(*nest))

    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)
        return trace(*leaves)
    except Exception:  # An error of the step itself is raised again when it runs.
        return None
