"""The one place that finds the highest values in the same order on every backend."""

from typing import Any

import keras
from keras import ops


def top_k(values: Any, k: int) -> tuple[Any, Any]:
    """Finds the `k` highest values of each row; of equal ones the first comes first.

    So do TensorFlow and JAX. PyTorch leaves the order of equal values open, and which
    of them it finds; where some are equal, they are found by sorting.

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
    import torch

    highest, columns = torch.topk(values, min(k + 1, values.shape[-1]))
    equal = highest[..., 1:] == highest[..., :-1]
    if torch.any(equal & (highest[..., 1:] > -torch.inf)):
        highest, columns = torch.sort(values, descending=True, stable=True)
    return highest[..., :k], columns[..., :k].to(torch.int32)
