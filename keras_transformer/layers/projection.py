"""Dense layers, as products of two matrices."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.backend.matmul import matmul
from keras_transformer.backend.xla_barriers import fusion_barrier


@keras.saving.register_keras_serializable("keras_transformer")
class Projection(keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` for `(batch, length, …)`, with all tokens in one row.

    Backends then see a product of two matrices, whose gradient with respect to the
    kernel is a product too. The equation has them multiply a batch of matrices, and
    TensorFlow's gradient of that is a kernel for each row of the batch, summed.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        bound = len(inputs.shape) - 2
        free = self.kernel.shape[bound:]
        width = math.prod(self.kernel.shape[:bound])
        tokens = ops.reshape(inputs, (-1, width))
        kernel = fusion_barrier(ops.reshape(self.kernel, (width, math.prod(free))))
        bias = None if self.bias is None else ops.reshape(self.bias, (-1,))
        output = matmul(tokens, kernel, bias)
        if self.activation is not None:
            output = self.activation(output)
        return ops.reshape(output, (*ops.shape(inputs)[:2], *free))

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        # Keras leaves subclasses out unless told otherwise.
        super().quantize(*args, **{**kwargs, "type_check": False})


@keras.saving.register_keras_serializable("keras_transformer")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` with the fastest product that the backend has."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        output = matmul(inputs, self.kernel, self.bias)
        return output if self.activation is None else self.activation(output)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        # Keras leaves subclasses out unless told otherwise.
        super().quantize(*args, **{**kwargs, "type_check": False})
