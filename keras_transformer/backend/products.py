"""The one place that knows who multiplies matrices fastest."""

import functools
from typing import Any

import keras
from keras import ops


def product(x: Any, kernel: Any) -> Any:
    """`ops.matmul` of rows and a matrix.

    PyTorch leaves float32 on a CPU to MKL, which takes half of what a processor of AMD
    can do. oneDNN, which PyTorch has for half precision, takes all of it.

    Args:
        x: float tensor `(..., width)`.
        kernel: float tensor `(width, units)`.

    Returns:
        Tensor `(..., units)`.
    """
    if keras.backend.backend() != "torch" or not _has_onednn():
        return ops.matmul(x, kernel)
    x, kernel = ops.convert_to_tensor(x), ops.convert_to_tensor(kernel)
    rows = x.reshape(-1, x.shape[-1])
    if not _is_for_onednn(rows, kernel):
        return ops.matmul(x, kernel)
    return _onednn().apply(rows, kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _has_onednn() -> bool:
    import torch

    if torch.compiler.is_compiling():  # or exported
        return False
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _is_for_onednn(rows: Any, kernel: Any) -> bool:
    import torch

    return (
        rows.device.type == kernel.device.type == "cpu"
        and rows.dtype == kernel.dtype == torch.float32
        and len(rows) > 1  # which MKL is faster with
        and kernel.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def _onednn() -> Any:
    import torch

    class Product(torch.autograd.Function):
        """The product of two matrices."""

        @staticmethod
        def forward(x: Any, kernel: Any) -> Any:
            return torch.ops.mkldnn._linear_pointwise(
                x, kernel.t(), None, "none", [], ""
            )

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def vmap(info: Any, dims: Any, x: Any, kernel: Any) -> Any:
            if dims[0] is not None:
                x = x.movedim(dims[0], 0)
            if dims[1] is not None:
                kernel = kernel.movedim(dims[1], 0)
            return torch.matmul(x, kernel), 0

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            x, kernel = ctx.saved_tensors
            of_x, of_kernel = ctx.needs_input_grad
            return (
                Product.apply(gradient, kernel.t()) if of_x else None,
                Product.apply(x.t(), gradient) if of_kernel else None,
            )

    return Product
