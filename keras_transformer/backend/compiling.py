"""The one place that knows how each backend compiles a function of tensors."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras

from keras_transformer.backend.while_loop import recording
from keras_transformer.backend.xla_barriers import under_xla


class HasWeights(Protocol):
    """A model whose weights a compiled function reads."""

    @property
    def weights(self) -> Sequence[Any]:
        """The weights."""
        ...

    @property
    def variables(self) -> Sequence[Any]:
        """The weights and all other variables."""
        ...


def compile_function(function: Callable[..., Any], model: HasWeights) -> Any:
    """Compiles a function that calls `model`, for inference.

    Each new shape of the arguments is compiled once; the weights are read anew
    at every call, so that training goes on without compiling again. Other weights,
    as after `enable_lora` or `quantize`, are compiled for again.

    Args:
        function: takes tensors (positional arguments), returns a nest of
            tensors, and uses no variables but the model's.
        model: a built model.

    Returns:
        A function of the same arguments: `tf.function(jit_compile=True)` on
        TensorFlow, `jax.jit` on JAX; PyTorch runs it eagerly without gradients, but
        for the steps of a `while_loop`, which it records.
    """
    compilers = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    return compilers[keras.backend.backend()](function, model)


def _tensorflow(function: Callable[..., Any], model: HasWeights) -> Any:
    import tensorflow as tf

    weights: Sequence[Any] = []
    traced: Any = None

    @functools.wraps(function)
    def marked(*arguments: Any) -> Any:
        with under_xla():
            return function(*arguments)

    def compiled(*arguments: Any) -> Any:
        nonlocal weights, traced
        now = model.weights
        if traced is None or list(map(id, now)) != list(map(id, weights)):
            # A trace holds on to the variables that there were.
            weights = now
            # `keras.ops` need nothing of what AutoGraph rewrites, which takes long.
            # TensorFlow, which warns of frequent tracing, takes all functions of one
            # code for one, but not what is `partial`.
            traced = tf.function(
                functools.partial(marked),
                jit_compile=True,
                reduce_retracing=True,
                autograph=False,
            )
        return traced(*arguments)

    return compiled


def _jax(function: Callable[..., Any], model: HasWeights) -> Any:
    import jax

    @jax.jit
    def stateless(values: list[Any], *arguments: Any) -> Any:
        mapping = zip(model.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)):
            return function(*arguments)

    def compiled(*arguments: Any) -> Any:
        return stateless([variable.value for variable in model.variables], *arguments)

    return compiled


def _torch(function: Callable[..., Any], model: HasWeights) -> Any:
    import torch

    weights: Sequence[Any] = []
    recordings: dict[Any, Any] = {}

    @torch.no_grad()
    def compiled(*arguments: Any) -> Any:
        nonlocal weights
        now = model.weights
        if list(map(id, now)) != list(map(id, weights)):
            weights = now
            recordings.clear()
        with recording(recordings):
            return function(*arguments)

    return compiled
