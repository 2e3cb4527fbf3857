"""Key-value caches of attention."""

from typing import NamedTuple, TypeAlias

import keras
from keras import ops

from keras_transformer.backend.slice_update import copy_with_slice, slice_update
from keras_transformer.types import Size, Tensor


class KeyValues(NamedTuple):
    """Key-value cache in the layout of the matrix products of attention.

    `read_cache` transposes it, and `scaled_dot_product_attention` transposes back: both
    cancel, so a decoding step copies no cache, unlike with KerasHub's layout
    `(batch, 2, length, num_key_value_heads, key_dim)`. `update_cache` and `read_cache`
    accept that layout too. Do not use a `KeyValues` again after an update: PyTorch
    overwrites its tensors. The entries of several hypotheses of a sentence follow
    each other along the length.

    Attributes:
        keys: float tensor `(batch, num_key_value_heads, key_dim, length)`.
        values: float tensor `(batch, num_key_value_heads, length, value_dim)`.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def from_heads(cls, keys: Tensor, values: Tensor) -> "KeyValues":
        """Creates a cache from projected keys and values.

        Args:
            keys: float tensor `(batch, length, num_key_value_heads, key_dim)`.
            values: float tensor `(batch, length, num_key_value_heads, value_dim)`.

        Returns:
            The `KeyValues`.
        """
        return cls(ops.transpose(keys, (0, 2, 3, 1)), swap_length_and_heads(values))

    def updated(self, keys: Tensor, values: Tensor, index: Size) -> "KeyValues":
        """Returns the cache with new keys and values.

        Args:
            keys: float tensor `(batch, new, num_key_value_heads, key_dim)`.
            values: float tensor `(batch, new, num_key_value_heads, value_dim)`.
            index: int or int scalar tensor, the first entry to write.

        Returns:
            The updated `KeyValues`.
        """
        new = KeyValues.from_heads(keys, values)
        return KeyValues(
            slice_update(self.keys, new.keys, index, axis=3),
            slice_update(self.values, new.values, index, axis=2),
        )

    def extended(self, length: Size) -> "KeyValues":
        """Returns the cache with empty entries appended up to `length` entries."""
        batch, num_heads, key_dim, _ = ops.shape(self.keys)
        value_dim = self.values.shape[-1]
        more = length - ops.shape(self.values)[2]
        keys = ops.zeros((batch, num_heads, key_dim, more), self.keys.dtype)
        values = ops.zeros((batch, num_heads, more, value_dim), self.values.dtype)
        return KeyValues(
            ops.concatenate([self.keys, keys], axis=3),
            ops.concatenate([self.values, values], axis=2),
        )


# `KeyValues`, or a tensor `(batch, 2, length, num_key_value_heads, key_dim)`.
Cache: TypeAlias = KeyValues | Tensor


def update_cache(cache: Cache, keys: Tensor, values: Tensor, index: Size) -> Cache:
    """Writes keys and values `(batch, new, num_key_value_heads, dim)` from `index` on.

    The result may share memory with `cache`, which must not be used again.
    """
    if isinstance(cache, KeyValues):
        return cache.updated(keys, values, index)
    return copy_with_slice(cache, ops.stack([keys, values], axis=1), index, axis=2)


def read_cache(cache: Cache) -> tuple[Tensor, Tensor]:
    """Reads keys and values `(batch, length, num_key_value_heads, dim)` of a cache."""
    if isinstance(cache, KeyValues):
        keys = ops.transpose(cache.keys, (0, 3, 1, 2))
        return keys, swap_length_and_heads(cache.values)
    return cache[:, 0], cache[:, 1]


def swap_length_and_heads(x: Tensor) -> Tensor:
    """Swaps the axes 1 and 2 of `(batch, length, num_heads, dim)`, or swaps them back.

    For an axis of size 1, tf2onnx 1.17 writes a wrong graph of `ops.transpose`.
    """
    if keras.backend.backend() == "tensorflow":
        for axis in (2, 1):
            if x.shape[axis] == 1:
                return ops.expand_dims(ops.squeeze(x, axis), 3 - axis)
    return ops.transpose(x, (0, 2, 1, 3))
