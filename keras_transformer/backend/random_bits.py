"""Random integers of 16 bits from the generator of each backend."""

import math
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.types import Size, Tensor


def random_int16(shape: tuple[Size, ...], seed: keras.random.SeedGenerator) -> Tensor:
    """Draws integers uniformly from all values of 16 bits.

    The generators of JAX and TensorFlow produce words of 32 bits. `keras.random` uses
    one word for each number; this function splits the words on these backends.

    Args:
        shape: tuple of ints or int scalar tensors.
        seed: the seed generator, which advances by one.

    Returns:
        Int16 tensor of the given shape, values in [-32768, 32767].
    """
    backend = keras.backend.backend()
    if backend in _DRAW:
        return _DRAW[backend](shape, seed.next())
    return keras.random.randint(shape, -(2**15), 2**15, dtype="int16", seed=seed)


def _jax(shape: tuple[int, ...], key: Any) -> Any:
    import jax

    size = math.prod(shape)
    words = jax.random.bits(key, (-(-size // 2),), "uint32")
    integers = jax.lax.bitcast_convert_type(words, "int16")
    return integers.reshape(-1)[:size].reshape(shape)


def _tensorflow(shape: tuple[Any, ...], seed: Any) -> Any:
    import tensorflow as tf

    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], tf.cast(seed, "int32"), None, None, dtype="int32"
    )
    return tf.reshape(tf.reshape(tf.bitcast(words, "int16"), [-1])[:size], shape)


_DRAW: dict[str, Callable[[tuple[Any, ...], Any], Any]] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
}
