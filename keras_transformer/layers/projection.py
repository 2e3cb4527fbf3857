"""Dense layers over several axes, computed as products of two matrices."""

import math

import keras
from keras import ops

from keras_transformer.types import Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class Projection(keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` for inputs `(batch, length, …)`, as a matrix product.

    All tokens are rows of one matrix, so the gradient of the kernel is a matrix product
    as well. With the einsum, TensorFlow computes a gradient for each row of the batch
    and adds them.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        num_summed_axes = len(inputs.shape) - 2
        output_shape = self.kernel.shape[num_summed_axes:]
        width = math.prod(self.kernel.shape[:num_summed_axes])
        tokens = ops.reshape(inputs, (-1, width))
        kernel = ops.reshape(self.kernel, (width, math.prod(output_shape)))
        output = ops.matmul(tokens, kernel)
        if self.bias is not None:
            output = output + ops.reshape(self.bias, (-1,))
        if self.activation is not None:
            output = self.activation(output)
        return ops.reshape(output, (*ops.shape(inputs)[:2], *output_shape))

    def quantize(self, *args: object, **kwargs: object) -> None:
        # Keras does not quantize subclasses by default.
        super().quantize(*args, **{**kwargs, "type_check": False})
