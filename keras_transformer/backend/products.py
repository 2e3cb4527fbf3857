"""The one place that knows who multiplies matrices fastest."""

import functools
from typing import Any

import keras
from keras import ops


def product(x: Any, kernel: Any, bias: Any = None) -> Any:
    """`ops.matmul` of rows and a matrix, and what is added to each row.

    PyTorch leaves float32 on a CPU to MKL, which takes half of what a processor of AMD
    can do. oneDNN, which PyTorch has for half precision, takes all of it,
    and adds the bias on its way.

    Args:
        x: float tensor `(..., width)`.
        kernel: float tensor `(width, units)`.
        bias: float tensor `(units,)`, if any.

    Returns:
        Tensor `(..., units)`.
    """
    if keras.backend.backend() == "torch" and _has_onednn():
        x, kernel, bias = (
            value if value is None else ops.convert_to_tensor(value)
            for value in (x, kernel, bias)
        )
        rows = x.reshape(-1, x.shape[-1])
        if _is_for_onednn(rows, kernel, bias):
            output = _onednn().apply(rows, kernel, bias)
            return output.reshape(*x.shape[:-1], kernel.shape[-1])
    output = ops.matmul(x, kernel)
    return output if bias is None else ops.add(output, bias)


def _has_onednn() -> bool:
    import torch

    if torch.compiler.is_compiling():  # or exported
        return False
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _is_for_onednn(rows: Any, kernel: Any, bias: Any) -> bool:
    import torch

    given = [value for value in (rows, kernel, bias) if value is not None]
    return (
        {value.device.type for value in given} == {"cpu"}
        and {value.dtype for value in given} == {torch.float32}
        and len(rows) > 1  # which MKL is faster with
        and kernel.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def _onednn() -> Any:
    import torch

    class Product(torch.autograd.Function):
        """The product of two matrices, and a bias or `None`."""

        @staticmethod
        def forward(x: Any, kernel: Any, bias: Any) -> Any:
            return torch.ops.mkldnn._linear_pointwise(
                x, kernel.t(), bias, "none", [], ""
            )

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[:2])

        @staticmethod
        def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
            x, kernel, bias = (
                value if place is None else value.movedim(place, 0)
                for value, place in zip(inputs, dims, strict=True)
            )
            output = torch.matmul(x, kernel)
            if bias is not None:
                output = output + (bias if dims[2] is None else bias[:, None])
            return output, 0

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            x, kernel = ctx.saved_tensors
            of_x, of_kernel, of_bias = ctx.needs_input_grad
            return (
                Product.apply(gradient, kernel.t(), None) if of_x else None,
                Product.apply(x.t(), gradient, None) if of_kernel else None,
                gradient.sum(0) if of_bias else None,
            )

    return Product
