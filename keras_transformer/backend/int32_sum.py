"""Sums of integers that stay int32."""

from keras import ops

from keras_transformer.types import Tensor


def int32_sum(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Computes sums of int32 or boolean tensors as int32, so a loop keeps its dtypes.

    With 64-bit types enabled, JAX returns int64 sums. A sum out of range wraps around.
    """
    sums = ops.sum(ops.cast(x, "int32"), axis=axis, keepdims=keepdims)
    return ops.cast(sums, "int32")
