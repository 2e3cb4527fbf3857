"""Transformer layers for any Keras model, on every backend."""

from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masking import causal_mask, merge_masks, padding_mask
from keras_transformer.layers.multi_head_attention import (
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.positional_encoding import PositionalEncoding
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.stacks import DecoderStack, EncoderStack

__all__ = [
    "DecoderBlock",
    "DecoderStack",
    "EncoderBlock",
    "EncoderStack",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Residual",
    "causal_mask",
    "merge_masks",
    "padding_mask",
    "scaled_dot_product_attention",
]
