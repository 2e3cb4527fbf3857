"""Random numbers that are a function of what they are for, alike on every backend.

A backend's generator gives numbers to positions of a batch, so that what a sentence
draws would depend on its batch mates, on padding and on the backend.
"""

from typing import Any

from keras import ops


def combine(key: Any, value: Any) -> Any:
    """Makes a new key of a key and a value.

    Args:
        key: int32 tensor.
        value: int32 tensor; the two are broadcast.

    Returns:
        int32 tensor of their common shape.
    """
    return _mix(ops.bitwise_xor(_mix(key), value + _int32(0x9E3779B9)))


def uniform(key: Any) -> Any:
    """Makes a number between 0 and 1, neither of them included, of each key.

    Args:
        key: int32 tensor from `combine`.

    Returns:
        float32 tensor of the same shape, multiples of 2^-24.
    """
    return (ops.cast(_shift(key, 9), "float32") + 0.5) * 2.0**-23


def key_of_tokens(token_ids: Any, mask: Any) -> Any:
    """Makes a key of a sentence, the same however it is padded.

    Args:
        token_ids: int32 tensor `(batch, length)`.
        mask: boolean tensor `(batch, length)`, the tokens that count.

    Returns:
        int32 tensor `(batch,)`.
    """
    positions = ops.arange(ops.shape(token_ids)[1], dtype="int32")
    keys = combine(positions, token_ids)
    return ops.sum(ops.where(mask, keys, 0), axis=1)


def _mix(x: Any) -> Any:
    """The finaliser of MurmurHash3 (Appleby): every bit changes every other."""
    x = ops.bitwise_xor(x, _shift(x, 16)) * _int32(0x85EBCA6B)
    x = ops.bitwise_xor(x, _shift(x, 13)) * _int32(0xC2B2AE35)
    return ops.bitwise_xor(x, _shift(x, 16))


def _shift(x: Any, bits: int) -> Any:
    """Shifts to the right and fills with zeros, whatever the sign."""
    return ops.bitwise_and(ops.right_shift(x, bits), 2 ** (32 - bits) - 1)


def _int32(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits
