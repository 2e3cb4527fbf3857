"""The one place that writes into a tensor, where a copy would be made of all of it."""

from typing import Any

import keras
from keras import ops


def write_slice(x: Any, part: Any, index: Any, axis: int) -> Any:
    """Replaces a part of `x`, which is lost.

    In a compiled loop XLA writes in place by itself. PyTorch has `x` copied, unless
    it is told to write into it, which it can wherever no gradient goes through it.

    Args:
        x: tensor.
        part: tensor of the same shape but for `axis`.
        index: int or int scalar tensor, where on `axis` the part begins.
        axis: int.

    Returns:
        The new tensor; on PyTorch without gradients it is `x` itself.

    Example:

    >>> x = write_slice(np.zeros((1, 3)), np.ones((1, 1)), 2, axis=1)
    >>> ops.convert_to_numpy(x).tolist()
    [[0.0, 0.0, 1.0]]
    """
    if keras.backend.backend() == "torch":
        import torch

        if isinstance(x, torch.Tensor) and not torch.is_grad_enabled():
            positions = index + torch.arange(part.shape[axis], device=x.device)
            x.index_copy_(axis, positions, part)
            return x
    start = [0] * len(x.shape)
    start[axis] = index
    return ops.slice_update(x, tuple(start), part)
