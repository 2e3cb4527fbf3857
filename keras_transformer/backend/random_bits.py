"""Random integers of 16 bits from the generator of each backend."""

import math
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.types import Size, Tensor


def random_int16(shape: tuple[Size, ...], seed: keras.random.SeedGenerator) -> Tensor:
    """Draws integers uniformly from all values of 16 bits.

    The generators of all backends produce words of 32 or 64 bits. `keras.random` uses
    one word for each number; this function splits the words.

    Args:
        shape: tuple of ints or int scalar tensors.
        seed: the seed generator, which advances by one.

    Returns:
        Int16 tensor of the given shape, values in [-32768, 32767].
    """
    return _DRAW[keras.backend.backend()](shape, seed.next())


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


def _torch(shape: tuple[int, ...], seed: Any) -> Any:
    import torch

    device = seed.device  # "meta" where Keras infers shapes
    if device.type == "meta":
        return torch.empty(shape, dtype=torch.int16, device=device)
    size = math.prod(shape)
    words = _torch_words(-(-size // 4), seed)
    return words.view(torch.int16)[:size].reshape(shape)


def _not_traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `torch.compile` call a function in place of tracing it.

    It does not support generators of random numbers.
    """
    if keras.backend.backend() != "torch":
        return function
    import torch

    return torch.compiler.disable(function)


@_not_traced
def _torch_words(number: int, seed: Any) -> Any:
    import torch

    generator = torch.Generator(device=seed.device).manual_seed(int(seed.sum()))
    words = torch.empty(number, dtype=torch.int64, device=seed.device)
    return words.random_(-(2**63), None, generator=generator)


_DRAW: dict[str, Callable[[tuple[Any, ...], Any], Any]] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "torch": _torch,
}
