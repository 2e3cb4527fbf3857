"""What an encoder block and a decoder block have in common."""

from typing import Any

import keras

from keras_transformer.arguments import check_ints, check_rates
from keras_transformer.layers import weight_options
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masking import attention_mask_from_padding, merge_masks
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    copy_scheme,
    keep_untracked,
)
from keras_transformer.layers.residual import Residual


class Block(keras.layers.Layer):
    """The settings and the sub-layers that `EncoderBlock` and `DecoderBlock` share.

    Not a layer of its own: it has no `call`. Its arguments are those of `EncoderBlock`.
    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        normalize_first: bool = False,
        positions: PositionScheme | None = None,
        attention_options: dict[str, Any] | None = None,
        feed_forward_options: dict[str, Any] | None = None,
        residual_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, intermediate_dim=intermediate_dim, num_heads=num_heads)
        check_rates(dropout=dropout)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        keep_untracked(self, positions)
        self.attention_options = attention_options or {}
        if "positions" in self.attention_options:
            raise ValueError(
                "`attention_options` must be without positions; received "
                f"`attention_options={attention_options}`. Give the scheme as "
                "`positions`."
            )
        self.feed_forward_options = feed_forward_options or {}
        self.residual_options = residual_options or {}
        self.supports_masking = True

    def _add_positions(self, inputs: Any, positions: Any = None) -> Any:
        if self.encoding is None:
            return inputs
        return self.encoding(inputs, positions=positions)

    def _self_attention(self, shape: Any) -> MultiHeadAttention:
        scheme = self.positions
        self.encoding: Any = None
        if scheme is not None and scheme.added_to_inputs:
            self.encoding = copy_scheme(scheme, self.dtype_policy)
            self.encoding.build(shape)
            scheme = None
        return self._attention("self_attention", shape, shape, positions=scheme)

    def _cross_attention(
        self, query_shape: Any, value_shape: Any
    ) -> MultiHeadAttention:
        everywhere = {"pattern": None, "sliding_window": None}
        return self._attention(
            "cross_attention", query_shape, value_shape, **everywhere
        )

    def _attention(
        self, name: str, query_shape: Any, value_shape: Any, **options: Any
    ) -> MultiHeadAttention:
        defaults = {
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "dtype": self.dtype_policy,
            "name": name,
            **self._initializers,
        }
        options = {**defaults, **self.attention_options, **options}
        if "key_dim" not in options:
            width, num_heads = query_shape[-1], options["num_heads"]
            options["key_dim"] = key_dim_per_head(width, num_heads)
        attention = MultiHeadAttention(**options)
        attention.build(query_shape, value_shape)
        return attention

    # By tracing, so that scores and caches are there too.
    compute_output_spec = keras.Operation.compute_output_spec

    def _residual(self, name: str, shape: Any) -> Residual:
        defaults = {
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "dtype": self.dtype_policy,
            "name": name,
        }
        residual = Residual(**{**defaults, **self.residual_options})
        residual.build(shape)
        return residual

    def _feed_forward(self, shape: Any) -> FeedForward:
        defaults = {
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "dtype": self.dtype_policy,
            "name": "feed_forward",
            **self._initializers,
        }
        feed_forward = FeedForward(**{**defaults, **self.feed_forward_options})
        feed_forward.build(shape)
        return feed_forward

    def _attend(
        self,
        attention: MultiHeadAttention,
        residual: Residual,
        inputs: Any,
        value: Any = None,
        attention_mask: Any = None,
        padding_mask: Any = None,
        *,
        training: bool | None,
        return_attention_scores: bool,
        cache: Any = None,
        **options: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Runs an attention sub-layer; returns its output, and scores and cache."""
        query = residual.prepare(inputs)
        padding = attention_mask_from_padding(padding_mask)
        result = attention(
            query,
            query if value is None else value,
            attention_mask=merge_masks(attention_mask, padding),
            training=training,
            return_attention_scores=return_attention_scores,
            cache=cache,
            **options,
        )
        wanted = {"scores": return_attention_scores, "cache": cache is not None}
        names = [name for name, is_wanted in wanted.items() if is_wanted]
        output, *extras = result if names else (result,)
        output = residual(inputs, output, training=training)
        return output, dict(zip(names, extras, strict=True))

    def _feed(self, x: Any, training: bool | None) -> Any:
        """Runs the feed-forward sub-layer."""
        residual = self.feed_forward_residual
        fed = self.feed_forward(residual.prepare(x), training=training)
        return residual(x, fed, training=training)

    @property
    def _initializers(self) -> dict[str, Any]:
        return {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
        }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            **weight_options.serialize(**self._initializers),
            **serialize_design(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Block":
        """Makes the block whose `get_config()` is `config`."""
        return cls(**deserialize_design(config))


# How blocks are built, beyond KerasHub's arguments; `Seq2Seq` has these too.
DESIGN = (
    "positions",
    "attention_options",
    "feed_forward_options",
    "residual_options",
)


def serialize_design(layer: Any) -> dict[str, Any]:
    """Returns the part of a configuration that may hold layers and patterns."""
    serialize = keras.saving.serialize_keras_object
    return {name: serialize(getattr(layer, name)) for name in DESIGN}


def deserialize_design(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with its layers and patterns made."""
    deserialize = keras.saving.deserialize_keras_object
    design = {name: deserialize(config[name]) for name in DESIGN if name in config}
    return {**config, **design}


def key_dim_per_head(hidden_dim: int, num_heads: int) -> int:
    """Returns `hidden_dim / num_heads`, the paper's d_k.

    Args:
        hidden_dim: int, width of the model.
        num_heads: int, number of attention heads.

    Returns:
        int, the width of one head.

    Raises:
        ValueError: if `num_heads` does not divide `hidden_dim`.

    Example:

    >>> key_dim_per_head(512, 8)
    64
    """
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be divisible by `num_heads`; received "
            f"`hidden_dim={hidden_dim}`, `num_heads={num_heads}`. Choose a multiple "
            "of the number of heads."
        )
    return hidden_dim // num_heads
