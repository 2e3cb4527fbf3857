"""Residual connection with normalisation."""

import keras
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.sub_layers import freeze_new_sub_layers
from keras_transformer.types import Config, Shape, Tensor
from keras_transformer_runtime.arguments import (
    check_one_of,
    check_positive,
    check_rates,
)


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(keras.layers.Layer):
    """Residual connection of a sub-layer, with dropout and normalisation.

    Post-norm, as in the paper: `Norm(x + Dropout(sublayer(x)))`; pre-norm:
    `x + Dropout(sublayer(Norm(x)))`. Call the sub-layer between the two calls:

        x = residual(x, sublayer(residual.prepare(x)))

    Args:
        dropout: float in [0, 1), dropout rate of the output of the sub-layer.
        layer_norm_epsilon: float, epsilon of the normalisation, finite and above 0.
        normalize_first: bool, whether to normalise the input of the sub-layer
            (pre-norm) instead of the sum (post-norm).
        normalization: `"layer"` (layer normalisation, as in the paper), `"rms"`
            (root mean square normalisation: no centring, no offset) or `None`.
        stochastic_depth: float in [0, 1), probability that training drops the
            whole output of the sub-layer for a row of the batch. The other outputs
            are divided by `1 - stochastic_depth`.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        outputs: float tensor `(batch, length, hidden_dim)`, the output of the
            sub-layer for `prepare(inputs)`. Without it, the layer returns
            `prepare(inputs)`.
        training: bool, whether to apply dropout and stochastic depth.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    Raises:
        ValueError: if `dropout`, `stochastic_depth` or `layer_norm_epsilon` is out of
            range, or `normalization` is unknown.

    Example:

    >>> residual = Residual(normalize_first=True, normalization="rms")
    >>> x = np.array([[[1.0, -1.0]]], "float32")
    >>> x = residual(x, 2 * residual.prepare(x))
    >>> keras.ops.convert_to_numpy(x).round().tolist()
    [[[3.0, -3.0]]]

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections
          3.1 and 5.4
        - [Xiong et al., 2020](https://arxiv.org/abs/2002.04745) (pre-norm)
        - [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467),
          equation 4 (`"rms"`)
        - [Huang et al., 2016](https://arxiv.org/abs/1603.09382), section 3
          (stochastic depth)
    """

    @explains_arguments
    def __init__(
        self,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        normalization: str | None = "layer",
        stochastic_depth: float = 0.0,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        check_rates(dropout=dropout, stochastic_depth=stochastic_depth)
        check_positive(layer_norm_epsilon=layer_norm_epsilon)
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.stochastic_depth = stochastic_depth
        self.supports_masking = True
        self.norm = make_normalization(
            normalization, layer_norm_epsilon, self.dtype_policy
        )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.stochastic_depth_layer = keras.layers.Dropout(
            stochastic_depth, dtype=self.dtype_policy
        )

    def build(self, inputs_shape: Shape, outputs_shape: Shape | None = None) -> None:
        if self.norm is not None:
            self.norm.build(inputs_shape)
        freeze_new_sub_layers(self)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Returns the input of the sub-layer.

        Args:
            inputs: float tensor `(batch, length, hidden_dim)`.

        Returns:
            Tensor `(batch, length, hidden_dim)`: the normalised inputs if
            `normalize_first`, otherwise the inputs.
        """
        return self(inputs)

    def call(
        self,
        inputs: Tensor,
        outputs: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        if outputs is None:
            return self._normalize(inputs) if self.normalize_first else inputs
        outputs = self.dropout_layer(outputs, training=training)
        if self.stochastic_depth and training:
            # The same for all values of a row. With `noise_shape`, Keras draws from a
            # new generator on PyTorch, which has no graph.
            rows = ops.ones((ops.shape(outputs)[0], 1, 1), outputs.dtype)
            outputs = outputs * self.stochastic_depth_layer(rows, training=True)
        total = inputs + outputs
        return total if self.normalize_first else self._normalize(total)

    def _normalize(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    def compute_output_shape(
        self, inputs_shape: Shape, outputs_shape: Shape | None = None
    ) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "normalization": self.normalization,
            "stochastic_depth": self.stochastic_depth,
        }


NORMALIZATIONS = {
    "layer": keras.layers.LayerNormalization,
    "rms": keras.layers.RMSNormalization,
}


def make_normalization(
    normalization: str | None,
    epsilon: float,
    dtype: str | keras.DTypePolicy | None = None,
    name: str = "norm",
) -> keras.layers.Layer | None:
    """Creates a layer that normalises over the last axis; `None` for `None`."""
    check_positive(epsilon=epsilon)
    check_one_of([*NORMALIZATIONS, None], normalization=normalization)
    if normalization is None:
        return None
    layer = NORMALIZATIONS[normalization](epsilon=epsilon, dtype=dtype, name=name)
    layer.supports_masking = True  # Keras 3.15 does not set it for RMS.
    return layer
