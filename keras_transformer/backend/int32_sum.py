"""Sums of integers that stay int32."""

from keras import ops

from keras_transformer.types import Tensor


def int32_sum(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Computes sums as int32, so that a loop keeps its dtypes.

    With 64-bit types enabled, JAX returns int64 sums of int32 tensors.

    Args:
        x: int32 or boolean tensor.
        axis: int, the axis to sum over. `None` = all axes.
        keepdims: bool, whether the axis is kept with size 1.

    Returns:
        int32 tensor. A sum out of range wraps around.

    Example:

    >>> ops.convert_to_numpy(int32_sum(np.array([True, False, True]))).item()
    2
    """
    sums = ops.sum(ops.cast(x, "int32"), axis=axis, keepdims=keepdims)
    return ops.cast(sums, "int32")
