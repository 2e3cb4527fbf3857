"""Dropout with 16 random bits for each element."""

import keras
from keras import ops

from keras_transformer.backend.random_bits import random_int16
from keras_transformer.types import Size, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class Dropout(keras.layers.Dropout):
    """Faster dropout, a drop-in replacement for `keras.layers.Dropout`.

    Elements are set to zero at random. Elements that are kept are divided by
    `1 - rate`, so the expected sum stays the same. On a CPU, most of the time of
    dropout is spent on random numbers. This layer compares 16 random bits of each
    element in place of a float. On JAX and TensorFlow, it draws half as many words as
    the Keras layer. The rate is exact to 1 / 131,072. The random numbers are those of
    the layer on every backend, so checkpoints contain their state.

    Args:
        rate: float in [0, 1], the probability that an element is set to zero.
        noise_shape: tuple of ints or `None`, the shape of the random mask, which is
            broadcast to the shape of the inputs; `None` = the size of that axis of the
            inputs.
        seed: int, the seed of the random numbers.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor of any shape.
        training: bool, whether to apply dropout.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Example:

    >>> dropped = Dropout(0.5, seed=1)(np.ones((4, 100), "float32"), training=True)
    >>> sorted(set(ops.convert_to_numpy(dropped).flatten().tolist()))
    [0.0, 2.0]

    References:
        - [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html)
    """

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if not training or self.rate == 0:
            return inputs
        if self.rate == 1:
            return ops.zeros_like(inputs)
        lowest_kept = min(round(self.rate * 2**16), 2**16 - 1) - 2**15
        bits = random_int16(self._mask_shape(inputs), self.seed_generator)
        kept = ops.greater_equal(bits, ops.cast(lowest_kept, "int16"))
        # Twice as fast as `where` on TensorFlow, which does not vectorize it.
        return inputs * (ops.cast(kept, inputs.dtype) * (1.0 / (1.0 - self.rate)))

    def _mask_shape(self, inputs: Tensor) -> tuple[Size, ...]:
        shape = ops.shape(inputs)
        if self.noise_shape is None:
            return shape
        last = shape[len(shape) - len(self.noise_shape) :]
        return tuple(
            size if fixed is None else fixed
            for size, fixed in zip(last, self.noise_shape, strict=True)
        )
