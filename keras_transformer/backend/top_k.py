"""The one place that finds the highest values in the same order on every backend."""

from typing import Any

import keras
from keras import ops


def top_k(values: Any, k: int) -> tuple[Any, Any]:
    """Finds the `k` highest values of each row; of equal ones the first comes first.

    So do TensorFlow and JAX. PyTorch leaves the order of equal values open, and which
    of them it finds, unless none are equal.

    Args:
        values: float tensor `(…, columns)`.
        k: int, at most `columns`.

    Returns:
        The values and their int32 columns, `(…, k)`, highest first.

    Example:

    >>> _, columns = top_k(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 2)
    >>> ops.convert_to_numpy(columns).tolist()
    [1, 2]
    """
    if keras.backend.backend() == "torch":
        return _torch_top_k(ops.convert_to_tensor(values), k)
    highest, columns = ops.top_k(values, k)
    return highest, ops.cast(columns, "int32")


def _torch_top_k(values: Any, k: int) -> tuple[Any, Any]:
    """Sorts by integers that all differ: a float's rank, and below it the column."""
    import torch

    bits = (values.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ranks = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    backwards = torch.arange(values.shape[-1] - 1, -1, -1, device=values.device)
    _, columns = torch.topk((ranks.long() << 32) | backwards, k)
    return values.gather(-1, columns), columns.to(torch.int32)
