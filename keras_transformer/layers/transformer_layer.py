"""Base class of blocks and stacks: the arguments of a Transformer block."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import keras

from keras_transformer.distribution import check_model_sizes
from keras_transformer.layers.activations import Activation, get_activation
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import PositionScheme, keep_untracked
from keras_transformer.layers.quantized_layers import QuantizedLayers
from keras_transformer.layers.sub_layers import Initializer, serialize_weight_options
from keras_transformer.types import Config, Options
from keras_transformer_runtime.arguments import check_ints, check_positive, check_rates

# Arguments that may hold layers and patterns.
OBJECTS = (
    "positions",
    "attention_options",
    "feed_forward_options",
    "residual_options",
)
# The same of models.
MODEL_OBJECTS = (*OBJECTS, "source_embedding", "encoder")


class TransformerLayer(QuantizedLayers):
    """Base class of blocks and stacks: checks, defaults and configuration.

    The arguments are those of `EncoderBlock`. Each is an attribute of the same name.
    """

    intermediate_dim: int  # width of the feed-forward networks (d_ff)
    num_heads: int
    dropout: float  # of the attention scores and the outputs of sub-layers
    activation: Callable[..., Any]  # of the feed-forward networks
    layer_norm_epsilon: float
    kernel_initializer: keras.Initializer
    bias_initializer: keras.Initializer
    normalize_first: bool
    positions: PositionScheme | None  # is copied; Keras does not track it
    attention_options: Options  # further arguments of each `MultiHeadAttention`
    feed_forward_options: Options  # further arguments of each `FeedForward`
    residual_options: Options  # further arguments of each `Residual`

    @explains_arguments
    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        normalize_first: bool = False,
        positions: PositionScheme | None = None,
        attention_options: Options | None = None,
        feed_forward_options: Options | None = None,
        residual_options: Options | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, intermediate_dim=intermediate_dim, num_heads=num_heads)
        check_model_sizes(intermediate_dim=intermediate_dim, num_heads=num_heads)
        check_rates(dropout=dropout)
        check_positive(layer_norm_epsilon=layer_norm_epsilon)
        if attention_options and "positions" in attention_options:
            raise ValueError(
                "`attention_options` must not contain 'positions'; received "
                f"`attention_options={attention_options}`. Pass the scheme as the "
                "argument `positions`."
            )
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        keep_untracked(self, positions)
        self.attention_options = attention_options or {}
        self.feed_forward_options = feed_forward_options or {}
        self.residual_options = residual_options or {}
        self.supports_masking = True

    # Traces `call`, since the outputs may include scores and caches.
    compute_output_spec = keras.Operation.compute_output_spec

    def get_block_arguments(self) -> dict[str, Any]:
        """Returns the arguments by name, for the constructor of a block or stack."""
        return {
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            **self.get_initializers(),
            "normalize_first": self.normalize_first,
            **{name: getattr(self, name) for name in OBJECTS},
        }

    def get_initializers(self) -> dict[str, keras.Initializer]:
        """Returns the initializers by argument name."""
        return {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
        }

    def get_block_config(self) -> Config:
        """Returns the arguments by name, serialized for `get_config`."""
        serialize = keras.saving.serialize_keras_object
        return {
            **self.get_block_arguments(),
            "activation": keras.activations.serialize(self.activation),
            **serialize_weight_options(**self.get_initializers()),
            **{name: serialize(getattr(self, name)) for name in OBJECTS},
        }

    def get_config(self) -> Config:
        return {**super().get_config(), **self.get_block_config()}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Creates the layer from its configuration."""
        return cls(**deserialize_objects(config))


def deserialize_objects(config: Config, names: Sequence[str] = OBJECTS) -> Config:
    """Deserializes the arguments that may hold layers and patterns."""
    deserialize = keras.saving.deserialize_keras_object
    objects = {name: deserialize(config[name]) for name in names if name in config}
    return {**config, **objects}
