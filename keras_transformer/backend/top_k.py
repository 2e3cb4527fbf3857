"""The highest values, with ties in the same order on every backend."""

from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Finds the `k` highest values of each row and their int32 columns, `(…, k)`.

    Equal values are in the order of columns, as `ops.top_k` guarantees on TensorFlow
    and JAX. On PyTorch it leaves open which of several equal values it returns.
    """
    if keras.backend.backend() == "torch":
        return _torch_top_k(ops.convert_to_tensor(values), k)
    highest, columns = ops.top_k(values, k)
    return highest, ops.cast(columns, "int32")


def _torch_top_k(values: Any, k: int) -> tuple[Tensor, Tensor]:
    """Sorts by distinct integers: the ranks of the floats, then their columns."""
    # The rank is in the high bits: the bits of a float, read as an integer, rank like
    # the float; those of negative floats are inverted first.
    import torch

    bits = (values.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0.
    ranks = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    last_column = values.shape[-1] - 1
    reversed_columns = torch.arange(last_column, -1, -1, device=values.device)
    _, columns = torch.topk((ranks.long() << 32) | reversed_columns, k)
    return values.gather(-1, columns), columns.to(torch.int32)
