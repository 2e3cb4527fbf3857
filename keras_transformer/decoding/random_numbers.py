"""Random numbers from keys, the same on every backend.

The random generator of a backend assigns numbers to the positions of a batch. With it,
samples would depend on the other sequences of the batch, on padding and on the backend.
"""

import keras
from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.types import Mask, Size, Tensor, TokenIds


def combine(key: Tensor, value: Size) -> Tensor:
    """Computes a new key from a key and a value, int32 of the broadcast shape."""
    return _mix(ops.bitwise_xor(_mix(key), value + _int32(0x9E3779B9)))


def uniform(key: Tensor) -> Tensor:
    """Computes a uniform float32 in (0, 1), a multiple of 2^-24, from each key."""
    return (ops.cast(_shift(key, 9), "float32") + 0.5) * 2.0**-23


def key_of_tokens(token_ids: TokenIds, mask: Mask) -> Tensor:
    """Computes a key of each sequence `(batch, length)`, independent of its padding."""
    positions = ops.arange(ops.shape(token_ids)[1], dtype="int32")
    keys = combine(positions, token_ids)
    return int32_sum(ops.where(mask, keys, 0), axis=1)


def key_of_array(array: Tensor) -> Tensor:
    """Computes a key of each array `(batch, ...)`, independent of final zeros."""
    is_float = "float" in keras.backend.standardize_dtype(array.dtype)
    numbers = ops.cast(array, "float32" if is_float else "int32")
    numbers = ops.reshape(numbers, (ops.shape(numbers)[0], -1))
    bits = numbers
    if is_float:  # TensorFlow has to know the size of the last axis
        bits = ops.view(numbers[..., None], "int32")[..., 0]
    return key_of_tokens(bits, ops.not_equal(numbers, 0))


def _mix(x: Tensor) -> Tensor:
    """Computes the finaliser of MurmurHash3 (Appleby)."""
    x = ops.bitwise_xor(x, _shift(x, 16)) * _int32(0x85EBCA6B)
    x = ops.bitwise_xor(x, _shift(x, 13)) * _int32(0xC2B2AE35)
    return ops.bitwise_xor(x, _shift(x, 16))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shifts to the right without sign extension."""
    return ops.bitwise_and(ops.right_shift(x, bits), 2 ** (32 - bits) - 1)


def _int32(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits
