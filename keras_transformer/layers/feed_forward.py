"""Position-wise feed-forward network, with or without a gate."""

import keras

from keras_transformer.layers.activations import Activation, get_activation
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.quantized_layers import QuantizedLayers
from keras_transformer.layers.sub_layers import (
    Initializer,
    clone_weight_options,
    freeze_new_sub_layers,
    known_size,
    serialize_weight_options,
)
from keras_transformer.types import Config, Shape, Tensor
from keras_transformer_runtime.arguments import check_ints, check_rates


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(QuantizedLayers):
    """Position-wise feed-forward network: two dense layers with an activation.

    `FFN(x) = activation(x W1 + b1) W2 + b2`. The output has the width of the
    input. With `gated=True`, the activation is applied to a third dense layer, the
    gate, which multiplies the first one:
    `FFN(x) = (activation(x V + c) * (x W1 + b1)) W2 + b2`. This is GLU with the
    activation `"sigmoid"`, ReGLU with `"relu"`, GEGLU with `"gelu"` and SwiGLU
    with `"silu"`. With two thirds of the `intermediate_dim`, a gated network has as
    many weights as one without a gate.

    Args:
        intermediate_dim: int, width of the inner layer (d_ff in the paper).
        activation: activation of the inner layer or of the gate.
        gated: bool, whether the network has a gate.
        dropout: float in [0, 1), dropout rate of the input of the last dense layer
            ("activation dropout").
        use_bias: bool, whether the dense layers have biases.
        kernel_initializer: initializer of all kernels.
        bias_initializer: initializer of all biases.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        training: bool, whether to apply dropout.

    Returns:
        Tensor `(batch, length, hidden_dim)` in the compute dtype.

    Raises:
        ValueError: if `intermediate_dim` or `dropout` is out of range.

    Example:

    >>> x = np.ones((2, 3, 5), "float32")
    >>> tuple(FeedForward(intermediate_dim=7)(x).shape)
    (2, 3, 5)
    >>> swiglu = FeedForward(7, activation="silu", gated=True, use_bias=False)
    >>> tuple(swiglu(x).shape), len(swiglu.weights)
    ((2, 3, 5), 3)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3
        - [Shazeer, 2020](https://arxiv.org/abs/2002.05202), section 2 (gate)
    """

    @explains_arguments
    def __init__(
        self,
        intermediate_dim: int,
        activation: Activation = "relu",
        *,
        gated: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        check_ints(1, intermediate_dim=intermediate_dim)
        check_rates(dropout=dropout)
        self.intermediate_dim = intermediate_dim
        self.activation = get_activation(activation)
        self.gated = gated
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

    def build(self, inputs_shape: Shape) -> None:
        *leading, _ = inputs_shape
        self.intermediate_dense = self._dense("intermediate", self.intermediate_dim)
        self.intermediate_dense.build(inputs_shape)
        self.gate_dense: keras.layers.Dense | None = None
        if self.gated:
            self.gate_dense = self._dense("gate", self.intermediate_dim)
            self.gate_dense.build(inputs_shape)
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)
        self.output_dense = self._dense("output", known_size(inputs_shape))
        self.output_dense.build((*leading, self.intermediate_dim))
        freeze_new_sub_layers(self)

    def _dense(self, name: str, units: int) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            **clone_weight_options(**self._initializers),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        inner = self.dropout_layer(self._inner(inputs), training=training)
        return self.output_dense(inner)

    def _inner(self, inputs: Tensor) -> Tensor:
        inner = self.intermediate_dense(inputs)
        if self.gate_dense is None:
            return self.activation(inner)
        return self.activation(self.gate_dense(inputs)) * inner

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    @property
    def _initializers(self) -> dict[str, keras.Initializer]:
        return {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
        }

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            **serialize_weight_options(**self._initializers),
        }
