"""Keys and values that attention keeps from one call to the next."""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.backend.slice_update import slice_update


class KeyValues(NamedTuple):
    """A cache whose layout is that of the products of attention.

    Nothing has to be moved before a step of decoding, as it has to be in KerasHub's
    layout `(batch, 2, length, num_key_value_heads, key_dim)`, which `update_cache` and
    `read_cache` take too. One that has been given to be updated is lost: PyTorch
    writes into it. Where a batch holds several hypotheses of each sentence,
    they are further entries of the length.

    Attributes:
        keys: float tensor `(batch, num_key_value_heads, key_dim, length)`.
        values: float tensor `(batch, num_key_value_heads, length, value_dim)`.
    """

    keys: Any
    values: Any

    @classmethod
    def of(cls, keys: Any, values: Any) -> "KeyValues":
        """Makes one of tensors `(batch, length, num_key_value_heads, dim)`."""
        return cls(
            ops.transpose(keys, (0, 2, 3, 1)), ops.transpose(values, (0, 2, 1, 3))
        )

    def updated(self, keys: Any, values: Any, index: Any) -> "KeyValues":
        """Makes one with new keys and values; see `update_cache`."""
        new = KeyValues.of(keys, values)
        return KeyValues(
            slice_update(self.keys, new.keys, index, axis=3),
            slice_update(self.values, new.values, index, axis=2),
        )

    def extended(self, length: Any) -> "KeyValues":
        """Makes one with room for `length` entries, behind its own."""
        more = self.empty(length - ops.shape(self.values)[2])
        return KeyValues(
            ops.concatenate([self.keys, more.keys], axis=3),
            ops.concatenate([self.values, more.values], axis=2),
        )

    def empty(self, length: Any) -> "KeyValues":
        """Makes one of as many heads, with zeros and another length."""
        batch, num_heads, key_dim, _ = ops.shape(self.keys)
        value_dim = self.values.shape[-1]
        return KeyValues(
            ops.zeros((batch, num_heads, key_dim, length), self.keys.dtype),
            ops.zeros((batch, num_heads, length, value_dim), self.values.dtype),
        )


def update_cache(cache: Any, keys: Any, values: Any, index: Any) -> Any:
    """Writes new keys and values into a cache.

    Args:
        cache: a `KeyValues`, or a float tensor
            `(batch, 2, length, num_key_value_heads, key_dim)`.
        keys: float tensor `(batch, new, num_key_value_heads, key_dim)`.
        values: float tensor `(batch, new, num_key_value_heads, value_dim)`.
        index: int or int scalar tensor, the entry of the first.

    Returns:
        The new cache. The one before may share its memory, and is lost.
    """
    if isinstance(cache, KeyValues):
        return cache.updated(keys, values, index)
    new = ops.stack([keys, values], axis=1)
    return ops.slice_update(cache, (0, 0, index, 0, 0), new)


def read_cache(cache: Any) -> tuple[Any, Any]:
    """Returns the keys and values of a cache, `(batch, length, num_heads, dim)`."""
    if isinstance(cache, KeyValues):
        keys = ops.transpose(cache.keys, (0, 3, 1, 2))
        return keys, ops.transpose(cache.values, (0, 2, 1, 3))
    return cache[:, 0], cache[:, 1]
