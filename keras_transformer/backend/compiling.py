"""Compilation of functions of a model for inference."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras

from keras_transformer.backend.processes import values_here
from keras_transformer.backend.while_loop import Recordings, recording


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


def compile_function(
    function: Callable[..., Any], model: HasWeights
) -> Callable[..., Any]:
    """Compiles a function that calls `model`, for inference.

    Each new shape of the arguments is compiled once. The weights are read at every
    call, so training can continue without a new compilation. If the model has other
    weights, as after `enable_lora` or `quantize`, the function is compiled again.

    Args:
        function: function of tensors that returns a nest of tensors. It must
            use no variables except those of the model.
        model: a built model.

    Returns:
        A function of the same arguments. TensorFlow compiles it with
        `tf.function(jit_compile=True)`, JAX with `jax.jit`. PyTorch runs it eagerly
        without gradients and records the steps of each `while_loop`.
    """
    compilers = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    return compilers[keras.backend.backend()](function, model)


def _tensorflow(function: Callable[..., Any], model: HasWeights) -> Callable[..., Any]:
    import tensorflow as tf

    weights: Sequence[Any] = []
    traced: Any = None

    def compiled(*arguments: Any, **named: Any) -> Any:
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


def _jax(function: Callable[..., Any], model: HasWeights) -> Callable[..., Any]:
    import jax

    @jax.jit
    def stateless(values: list[Any], *arguments: Any, **named: Any) -> Any:
        mapping = zip(model.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)):
            return function(*arguments, **named)

    def compiled(*arguments: Any, **named: Any) -> Any:
        return stateless(values_here(model.variables), *arguments, **named)

    return compiled


def _torch(function: Callable[..., Any], model: HasWeights) -> Callable[..., Any]:
    import torch

    weights: Sequence[Any] = []
    recordings: Recordings = {}

    @torch.no_grad()
    def compiled(*arguments: Any, **named: Any) -> Any:
        nonlocal weights
        current = model.weights
        if _differ(current, weights):
            weights = current
            recordings.clear()
        with recording(recordings):
            return function(*arguments, **named)

    return compiled


def _differ(weights: Sequence[Any], others: Sequence[Any]) -> bool:
    return list(map(id, weights)) != list(map(id, others))
