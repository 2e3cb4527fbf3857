"""Position-wise feed-forward network."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between them, at every position.

    `FFN(x) = activation(x W1 + b1) W2 + b2`; the output has the width of the
    input.

    Args:
        intermediate_dim: int, width of the inner layer (d_ff in the paper).
        activation: activation between the two layers.
        kernel_initializer: initializer of both kernels.
        bias_initializer: initializer of both biases.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.

    Returns:
        Tensor `(batch, length, hidden_dim)` in the compute dtype.

    Example:

    >>> tuple(FeedForward(intermediate_dim=7)(np.ones((2, 3, 5), "float32")).shape)
    (2, 3, 5)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: Any = "relu",
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        *leading, hidden_dim = inputs_shape
        self.intermediate_dense = self._dense("intermediate", self.intermediate_dim)
        self.intermediate_dense.build(inputs_shape)
        self.output_dense = self._dense("output", hidden_dim)
        self.output_dense.build((*leading, self.intermediate_dim))

    def _dense(self, name: str, units: int) -> keras.layers.Dense:
        return keras.layers.Dense(
            units, **self._initializers(), dtype=self.dtype_policy, name=name
        )

    def _initializers(self) -> dict[str, Any]:
        """Serialized, so that every sub-layer makes (and seeds) its own."""
        return {
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def call(self, inputs: Any) -> Any:
        return self.output_dense(self.activation(self.intermediate_dense(inputs)))

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            **self._initializers(),
        }
