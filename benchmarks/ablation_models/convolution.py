"""Convolutional sequence-to-sequence model (ConvS2S) of Keras layers.

Each block has a convolution, a gated linear unit and a residual connection. Positions
are learned, every block of the decoder has attention, and sums are scaled by √½. The
model omits the scaled gradients of the encoder, and weight normalisation, for which
Keras has no layer: the initial variance of the kernels is that of section 3.5 for
models without weight normalisation.

Reference:
    Gehring et al. 2017, Convolutional Sequence to Sequence Learning, section 3.
"""

from typing import Any

import keras
from keras import ops

from ablation_models.tokens import (
    HIDDEN_DIM,
    MAX_LENGTH,
    is_token,
    tied_embedding,
    token_inputs,
)
from keras_transformer import Tokenizer

# 2.34 million parameters with 8,000 subwords; receptive fields of 13 and 11 tokens.
ENCODER_LAYERS, DECODER_LAYERS, KERNEL_SIZE = 6, 5, 3


def convolution(tokenizer: Tokenizer, dropout: float) -> keras.Model:
    inputs = token_inputs()
    mask = is_token(inputs["encoder_token_ids"], tokenizer)
    embedding = tied_embedding(tokenizer)

    def embed(token_ids: Any) -> Any:
        x = embedding(token_ids) + positions(token_ids)
        return keras.layers.Dropout(dropout)(x)

    source = embed(inputs["encoder_token_ids"])
    encoded = source
    for _ in range(ENCODER_LAYERS):
        real = ops.where(mask[:, :, None], encoded, 0.0)
        encoded = half(encoded + gated_convolution(real, "same", dropout))
    target = embed(inputs["decoder_token_ids"])
    x = target
    for _ in range(DECODER_LAYERS):
        block = gated_convolution(x, "causal", dropout)
        context = attend(half(dense(block) + target), encoded, source, mask)
        x = half(x + half(block + context))
    x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, embedding(x, reverse=True), name="convolution")


def positions(token_ids: Any) -> Any:
    counted = ops.cumsum(ops.ones_like(token_ids), axis=1) - 1
    near_zero = keras.initializers.RandomNormal(stddev=0.1)
    return keras.layers.Embedding(MAX_LENGTH, HIDDEN_DIM, near_zero)(counted)


def gated_convolution(x: Any, padding: str, dropout: float) -> Any:
    """Returns the output of a block without its residual connection."""
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Conv1D(
        2 * HIDDEN_DIM,
        KERNEL_SIZE,
        padding=padding,
        kernel_initializer=keras.initializers.VarianceScaling(
            4 * (1 - dropout), "fan_in", "untruncated_normal"
        ),
    )(x)
    return keras.activations.glu(x)


def attend(query: Any, encoded: Any, source: Any, mask: Any) -> Any:
    """Returns the context of a decoder block, with the variance of the block."""
    value = half(encoded + source)
    context = keras.layers.Attention()([query, value, encoded], mask=[None, mask])
    lengths = ops.sum(ops.cast(mask, context.dtype), axis=1)
    return dense(context * ops.sqrt(lengths)[:, None, None])


def dense(x: Any) -> Any:
    initializer = keras.initializers.VarianceScaling(1.0, "fan_in")
    return keras.layers.Dense(HIDDEN_DIM, kernel_initializer=initializer)(x)


def half(total: Any) -> Any:
    """Scales the sum of two tensors to the variance of one."""
    return total * 0.5**0.5
