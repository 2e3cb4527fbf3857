"""Matrix multiplication with the fastest kernel of each backend."""

import functools
import pathlib
from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor


def matmul(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `ops.matmul(x, kernel)`, plus `bias` if it is given.

    PyTorch multiplies float32 on a CPU with MKL, which reaches a third to a half of the
    speed of most AMD processors. oneDNN, which PyTorch uses for half precision, reaches
    all of it and adds the bias in the same kernel.

    Args:
        x: float tensor `(..., width)`.
        kernel: float tensor `(width, units)`.
        bias: float tensor `(units,)`, or `None`.

    Returns:
        Tensor `(..., units)`.
    """
    if keras.backend.backend() == "torch" and _is_onednn_enabled():
        return _torch_matmul(x, kernel, bias)
    return _matmul(x, kernel, bias)


def _matmul(x: Any, kernel: Any, bias: Any) -> Any:
    output = ops.matmul(x, kernel)
    return output if bias is None else ops.add(output, bias)


def _torch_matmul(x: Any, kernel: Any, bias: Any) -> Any:
    x, kernel, bias = (
        value if value is None else ops.convert_to_tensor(value)
        for value in (x, kernel, bias)
    )
    rows = x.reshape(-1, x.shape[-1])
    if not _is_for_onednn(rows, kernel, bias):
        return _matmul(x, kernel, bias)
    output = _onednn().apply(rows, kernel, bias)
    return output.reshape(*x.shape[:-1], kernel.shape[-1])


def _is_onednn_enabled() -> bool:
    import torch

    if torch.compiler.is_compiling():  # or exporting
        return False
    return (
        _is_mkl_slow()
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and _has_linear()
    )


@functools.cache
def _is_mkl_slow(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Returns whether oneDNN is faster than MKL on this processor.

    It is on AMD's, except family 25 with AVX-512 (Zen 4), where training takes 3 to 7 %
    longer. The rule is not a measurement, so that a resumed run rounds as before.

    Args:
        cpuinfo: path of Linux's description of the processor.
    """
    try:
        lines = pathlib.Path(cpuinfo).read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    entries = [[part.strip() for part in line.split(":", 1)] for line in lines]
    found = {name: value for name, value in (e for e in entries if len(e) == 2)}
    is_zen_4 = found.get("cpu family") == "25" and "avx512f" in found.get("flags", "")
    return found.get("vendor_id") == "AuthenticAMD" and not is_zen_4


@functools.cache
def _has_linear() -> bool:
    """Returns whether PyTorch has oneDNN's linear layer, and with these arguments.

    PyTorch has no public function for it: `torch.nn.functional.linear` uses MKL for
    float32. Without it `matmul` is `ops.matmul`.
    """
    import torch

    x, kernel, bias = (torch.ones(n, device="cpu") for n in ((2, 3), (3, 1), (1,)))
    try:
        return _linear(x, kernel, bias).shape == (2, 1)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _linear(x: Any, kernel: Any, bias: Any) -> Any:
    import torch

    # Above its limit of recompilations, `torch.compile` runs a caller without compiling
    # it, and compiles this function alone. It cannot compile the operation.
    if torch.compiler.is_compiling():
        return torch.nn.functional.linear(x, kernel.t(), bias)
    return torch.ops.mkldnn._linear_pointwise(x, kernel.t(), bias, "none", [], "")


def _is_for_onednn(rows: Any, kernel: Any, bias: Any) -> bool:
    import torch

    tensors = [value for value in (rows, kernel, bias) if value is not None]
    return (
        {value.device.type for value in tensors} == {"cpu"}
        and {value.dtype for value in tensors} == {torch.float32}
        and len(rows) > 1  # MKL is faster for a single row.
        and kernel.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def _onednn() -> Any:
    import torch

    class MatMul(torch.autograd.Function):
        """The product of two matrices, plus a bias or `None`."""

        @staticmethod
        def forward(x: Any, kernel: Any, bias: Any) -> Any:
            return _linear(x, kernel, bias)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[:2])

        @staticmethod
        def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
            x, kernel, bias = (
                value if axis is None else value.movedim(axis, 0)
                for value, axis in zip(inputs, dims, strict=True)
            )
            output = torch.matmul(x, kernel)
            if bias is not None:
                output = output + (bias if dims[2] is None else bias[:, None])
            return output, 0

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            x, kernel = ctx.saved_tensors
            needs_x, needs_kernel, needs_bias = ctx.needs_input_grad
            return (
                MatMul.apply(gradient, kernel.t(), None) if needs_x else None,
                MatMul.apply(x.t(), gradient, None) if needs_kernel else None,
                gradient.sum(0) if needs_bias else None,
            )

    return MatMul
