"""The residual connection with layer normalisation around every sub-layer."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(keras.layers.Layer):
    """Joins a sub-layer's output to its input: dropout, sum, normalisation.

    Post-norm, as in the paper: `LayerNorm(x + Dropout(sublayer(x)))`; pre-norm:
    `x + Dropout(sublayer(LayerNorm(x)))`. The sub-layer is called in between:

        x = residual(x, sublayer(residual.prepare(x)))

    Args:
        dropout: float in [0, 1), dropout rate of the sub-layer's output.
        layer_norm_epsilon: float, epsilon of the normalisation.
        normalize_first: whether to normalise the input of the sub-layer rather
            than the sum.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        outputs: float tensor `(batch, length, hidden_dim)`, what the sub-layer
            made of `prepare(inputs)`.
        training: whether dropout is applied.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections
          3.1 and 5.4
        - [Xiong et al., 2020](https://arxiv.org/abs/2002.04745) (pre-norm)
    """

    def __init__(
        self,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.supports_masking = True
        self.norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, inputs_shape: Any, outputs_shape: Any = None) -> None:
        self.norm.build(inputs_shape)

    def prepare(self, inputs: Any) -> Any:
        """Returns what the sub-layer is to be called on.

        Args:
            inputs: float tensor `(batch, length, hidden_dim)`.

        Returns:
            Tensor `(batch, length, hidden_dim)`: normalised if
            `normalize_first`, the inputs themselves if not.
        """
        return self.norm(inputs) if self.normalize_first else inputs

    def call(self, inputs: Any, outputs: Any, training: bool | None = None) -> Any:
        total = inputs + self.dropout_layer(outputs, training=training)
        return total if self.normalize_first else self.norm(total)

    def compute_output_shape(self, inputs_shape: Any, outputs_shape: Any = None) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
        }
