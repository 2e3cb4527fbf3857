"""Updates of a slice of a tensor, in place where the backend allows it."""

from typing import Any

import keras
from keras import ops

from keras_transformer.types import Size, Tensor


def slice_update(x: Tensor, updates: Tensor, index: Size, axis: int) -> Tensor:
    """Replaces a slice of `x` from `index` on, after which `x` must not be used.

    XLA updates in place in a compiled loop. `ops.slice_update` of PyTorch copies `x`;
    this function writes into `x` if no gradients are recorded, and returns it.
    """
    if keras.backend.backend() == "torch" and _is_writable(x):
        return _torch_slice_update(x, updates, index, axis)
    return copy_with_slice(x, updates, index, axis)


def copy_with_slice(x: Tensor, updates: Tensor, index: Size, axis: int) -> Tensor:
    """Returns a copy of `x` with another slice; see `slice_update`."""
    start: list[Size] = [0 * index] * len(x.shape)  # For JAX, all of one dtype.
    start[axis] = index
    return ops.slice_update(x, tuple(start), updates)


def _is_writable(x: Tensor) -> bool:
    import torch

    return isinstance(x, torch.Tensor) and not torch.is_grad_enabled()


def _torch_slice_update(x: Any, updates: Tensor, index: Size, axis: int) -> Tensor:
    import torch

    positions = index + torch.arange(updates.shape[axis], device=x.device)
    return x.index_copy_(axis, positions, updates)
