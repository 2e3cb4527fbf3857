"""The residual connection with normalisation around every sub-layer."""

from typing import Any

import keras

from keras_transformer.arguments import check_rates
from keras_transformer.backend.xla_barriers import materialization_barrier
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.freezing import freeze_new_layers


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(keras.layers.Layer):
    """Joins a sub-layer's output to its input: dropout, sum, normalisation.

    Post-norm, as in the paper: `Norm(x + Dropout(sublayer(x)))`; pre-norm:
    `x + Dropout(sublayer(Norm(x)))`. The sub-layer is called in between:

        x = residual(x, sublayer(residual.prepare(x)))

    Args:
        dropout: float in [0, 1), dropout rate of the sub-layer's output.
        layer_norm_epsilon: float, epsilon of the normalisation.
        normalize_first: whether to normalise the input of the sub-layer rather
            than the sum.
        normalization: `"layer"` (layer normalisation, as in the paper), `"rms"`
            (by the root mean square: no centring, no offset) or `None`.
        stochastic_depth: float in [0, 1), probability that a training step
            leaves the sub-layer's whole output out for a row of the batch; the
            outputs that stay are divided by `1 - stochastic_depth`.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        outputs: float tensor `(batch, length, hidden_dim)`, what the sub-layer
            made of `prepare(inputs)`. Without it the call is `prepare`.
        training: whether dropout and stochastic depth are applied.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    Raises:
        ValueError: if `dropout`, `stochastic_depth` or `normalization` is not
            one of the values above.

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

    def __init__(
        self,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        normalization: str | None = "layer",
        stochastic_depth: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_rates(dropout=dropout, stochastic_depth=stochastic_depth)
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.stochastic_depth = stochastic_depth
        self.supports_masking = True
        self.norm = make_normalization(
            normalization, layer_norm_epsilon, self.dtype_policy
        )
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.stochastic_depth_layer = Dropout(
            stochastic_depth, noise_shape=(None, 1, 1), dtype=self.dtype_policy
        )

    def build(self, inputs_shape: Any, outputs_shape: Any = None) -> None:
        if self.norm is not None:
            self.norm.build(inputs_shape)
        freeze_new_layers(self)

    def prepare(self, inputs: Any) -> Any:
        """Returns what the sub-layer is to be called on.

        Args:
            inputs: float tensor `(batch, length, hidden_dim)`.

        Returns:
            Tensor `(batch, length, hidden_dim)`: normalised if
            `normalize_first`, the inputs themselves if not.
        """
        return self(inputs)

    def call(
        self, inputs: Any, outputs: Any = None, training: bool | None = None
    ) -> Any:
        if outputs is None:
            return self._normalize(inputs) if self.normalize_first else inputs
        outputs = self.dropout_layer(outputs, training=training)
        outputs = self.stochastic_depth_layer(outputs, training=training)
        total = materialization_barrier(inputs + outputs)
        return total if self.normalize_first else self._normalize(total)

    def _normalize(self, x: Any) -> Any:
        return x if self.norm is None else self.norm(x)

    def compute_output_shape(self, inputs_shape: Any, outputs_shape: Any = None) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "normalization": self.normalization,
            "stochastic_depth": self.stochastic_depth,
        }


_NORMALIZATIONS = {
    "layer": keras.layers.LayerNormalization,
    "rms": keras.layers.RMSNormalization,
}


def make_normalization(
    normalization: str | None, epsilon: float, dtype: Any = None
) -> keras.layers.Layer | None:
    """Makes the layer that normalises over the last axis.

    Args:
        normalization: `"layer"`, `"rms"` or `None`.
        epsilon: float, added to the variance or the mean square.
        dtype: dtype or dtype policy of the layer.

    Returns:
        A layer, not yet built; `None` if `normalization` is.

    Raises:
        ValueError: if `normalization` is something else.

    Example:

    >>> make_normalization("rms", epsilon=1e-6).name
    'norm'
    """
    if normalization is None:
        return None
    if normalization not in _NORMALIZATIONS:
        raise ValueError(
            "`normalization` must be 'layer', 'rms' or `None`; received "
            f"`normalization={normalization!r}`."
        )
    layer = _NORMALIZATIONS[normalization](epsilon=epsilon, dtype=dtype, name="norm")
    layer.supports_masking = True  # Keras 3.15 leaves it out for RMS.
    return layer
