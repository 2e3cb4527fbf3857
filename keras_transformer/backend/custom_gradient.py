"""Functions with a gradient of their own, whose derivatives have derivatives too."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor


def with_gradient(
    value: Callable[..., Tensor], gradient: Callable[..., tuple[Tensor | None, ...]]
) -> Callable[..., Tensor]:
    """Returns a function with a gradient that takes less memory than the automatic one.

    `value` computes float32 `(rows,)` from tensors `(rows, …)`, each row for itself,
    and `gradient(upstream, *tensors)` the gradient by each tensor, `None` for integers.
    Second derivatives are right, since the backend differentiates the operations of
    `gradient`. JAX ignores it, as XLA makes the automatic gradient as small.
    """
    if keras.backend.backend() == "torch":
        return functools.partial(_torch_function().apply, value, gradient)
    if keras.backend.backend() == "jax":
        return value

    @ops.custom_gradient
    def function(*tensors: Tensor) -> tuple[Tensor, Callable[..., object]]:
        return value(*tensors), lambda upstream: gradient(upstream, *tensors)

    return function


@functools.cache
def _torch_function() -> Any:
    import torch

    class Function(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(
            value: Callable[..., Tensor], gradient: object, *tensors: Tensor
        ) -> Tensor:
            return value(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: object) -> None:
            _, ctx.gradient, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
            return None, None, *ctx.gradient(upstream, *ctx.saved_tensors)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Tensor:
            tensors = ctx.saved_tensors
            ones = torch.ones(len(tensors[0]), device=tensors[0].device)
            pairs = zip(ctx.gradient(ones, *tensors), tangents[2:], strict=True)
            return sum(
                (by * tangent).sum(dim=-1)
                for by, tangent in pairs
                if by is not None and tangent is not None
            )

    return Function
