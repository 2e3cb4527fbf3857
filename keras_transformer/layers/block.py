"""Base class of encoder blocks and decoder blocks."""

from typing import Any, NamedTuple

from keras_transformer.layers.argument_errors import check_embedded
from keras_transformer.layers.attention.key_values import Cache
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masking import attention_mask_from_padding, merge_masks
from keras_transformer.layers.positions.scheme import PositionScheme, copy_scheme
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.sub_layers import known_size
from keras_transformer.layers.transformer_layer import TransformerLayer
from keras_transformer.types import Mask, Shape, Size, Tensor


class AttentionExtras(NamedTuple):
    """The scores and the updated cache of an attention layer, if requested."""

    scores: Tensor | None  # (batch, num_heads, query_length, key_length)
    cache: Cache | None


class Block(TransformerLayer):
    """Base class of `EncoderBlock`, whose arguments it has, and `DecoderBlock`."""

    self_attention: MultiHeadAttention
    self_attention_residual: Residual
    feed_forward: FeedForward
    feed_forward_residual: Residual
    encoding: PositionScheme | None

    def _build_self_attention(self, shape: Shape) -> MultiHeadAttention:
        check_embedded(self, shape)
        scheme = self.positions
        self.encoding = None
        if scheme is not None and scheme.added_to_inputs:
            encoding = copy_scheme(scheme, self.dtype_policy)
            encoding.build(shape)
            self.encoding = encoding
            scheme = None
        return self._build_attention("self_attention", shape, shape, positions=scheme)

    def _build_cross_attention(
        self, query_shape: Shape, value_shape: Shape
    ) -> MultiHeadAttention:
        check_embedded(self, value_shape)
        return self._build_attention(
            "cross_attention",
            query_shape,
            value_shape,
            pattern=None,
            sliding_window=None,
        )

    def _build_attention(
        self, name: str, query_shape: Shape, value_shape: Shape, **options: Any
    ) -> MultiHeadAttention:
        defaults = {
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "dtype": self.dtype_policy,
            "name": name,
            **self.get_initializers(),
        }
        options = {**defaults, **self.attention_options, **options}
        if "key_dim" not in options:
            hidden_dim, num_heads = known_size(query_shape), options["num_heads"]
            options["key_dim"] = key_dim_per_head(hidden_dim, num_heads)
        attention = MultiHeadAttention(**options)
        attention.build(query_shape, value_shape)
        return attention

    def _build_residual(self, name: str, shape: Shape) -> Residual:
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

    def _build_feed_forward(self, shape: Shape) -> FeedForward:
        defaults = {
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "dtype": self.dtype_policy,
            "name": "feed_forward",
            **self.get_initializers(),
        }
        feed_forward = FeedForward(**{**defaults, **self.feed_forward_options})
        feed_forward.build(shape)
        return feed_forward

    def _add_encoding(
        self, inputs: Tensor, positions: Tensor | None, start: Size | None = None
    ) -> Tensor:
        if self.encoding is None:
            return inputs
        start = 0 if start is None else start
        return self.encoding(inputs, start_index=start, positions=positions)

    def _attend(
        self,
        attention: MultiHeadAttention,
        residual: Residual,
        x: Tensor,
        source: Tensor | None = None,
        *,
        padding_mask: Mask | None,  # (batch, key_length)
        attention_mask: Mask | None,
        cache: Cache | None,
        training: bool | None,
        return_attention_scores: bool,
        **options: Any,
    ) -> tuple[Tensor, AttentionExtras]:
        """Calls an attention layer inside its residual connection."""
        query = residual.prepare(x)
        padding = attention_mask_from_padding(padding_mask)
        outputs = attention(
            query,
            query if source is None else source,
            attention_mask=merge_masks(attention_mask, padding),
            cache=cache,
            training=training,
            return_attention_scores=return_attention_scores,
            **options,
        )
        others: list[Any] = []
        if cache is not None or return_attention_scores:
            outputs, *others = outputs
        scores = others.pop(0) if return_attention_scores else None
        extras = AttentionExtras(scores, None if cache is None else others[0])
        return residual(x, outputs, training=training), extras

    def _feed_forward_with_residual(self, x: Tensor, training: bool | None) -> Tensor:
        """Calls the feed-forward network inside its residual connection."""
        residual = self.feed_forward_residual
        outputs = self.feed_forward(residual.prepare(x), training=training)
        return residual(x, outputs, training=training)


def key_dim_per_head(hidden_dim: int, num_heads: int) -> int:
    """Returns `hidden_dim / num_heads` (d_k in the paper), which must be an integer."""
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be divisible by `num_heads`; received "
            f"`hidden_dim={hidden_dim}`, `num_heads={num_heads}`. Choose a multiple "
            "of the number of heads."
        )
    return hidden_dim // num_heads
