"""Transformer layers for any Keras model, on every backend."""

from keras_transformer.layers.attention import (
    AttentionPattern,
    GlobalLocal,
    KeyValues,
    LocalWindow,
    MultiHeadAttention,
    Strided,
    scaled_dot_product_attention,
)
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.decoder_stack import DecoderStack
from keras_transformer.layers.embedding import ScaledEmbedding
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.encoder_stack import EncoderStack
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masking import causal_mask, merge_masks, padding_mask
from keras_transformer.layers.positions import (
    AlibiBias,
    LearnedPositionalEncoding,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.layers.residual import Residual

__all__ = [
    "AlibiBias",
    "AttentionPattern",
    "DecoderBlock",
    "DecoderStack",
    "EncoderBlock",
    "EncoderStack",
    "FeedForward",
    "GlobalLocal",
    "KeyValues",
    "LearnedPositionalEncoding",
    "LocalWindow",
    "MultiHeadAttention",
    "PositionScheme",
    "PositionalEncoding",
    "RelativePositionBias",
    "Residual",
    "RotaryEmbedding",
    "ScaledEmbedding",
    "Strided",
    "causal_mask",
    "merge_masks",
    "padding_mask",
    "scaled_dot_product_attention",
]
