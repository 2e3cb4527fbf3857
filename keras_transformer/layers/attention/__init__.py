"""Attention: scores and weighted sums, patterns, caches, and the layer."""

from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.attention.patterns import (
    AttentionPattern,
    GlobalLocal,
    LocalWindow,
    Strided,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)

__all__ = [
    "AttentionPattern",
    "GlobalLocal",
    "KeyValues",
    "LocalWindow",
    "MultiHeadAttention",
    "Strided",
    "scaled_dot_product_attention",
]
