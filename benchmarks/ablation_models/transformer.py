"""The Transformer and its ablations."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
from keras import ops

from ablation_models.tokens import MAX_LENGTH
from keras_transformer import PositionalEncoding, PositionScheme, Seq2Seq, Tokenizer
from keras_transformer.layers import block
from keras_transformer.layers.residual import Residual


def transformer(
    tokenizer: Tokenizer,
    positions: Callable[[], PositionScheme] = PositionalEncoding,
    attention_dropout: float = 0.0,
    **settings: Any,
) -> keras.Model:
    return Seq2Seq.from_preset(
        "transformer_tiny",
        source_tokenizer=tokenizer,
        normalize_first=True,
        positions=positions(),
        attention_options={"dropout": attention_dropout},
        max_source_length=MAX_LENGTH,
        max_target_length=MAX_LENGTH,
        **settings,
    )


class Disconnected(Residual):
    """A residual connection without the inputs of the sub-layer."""

    def call(self, inputs, outputs=None, training=None):
        if outputs is not None:
            inputs = ops.zeros_like(inputs)
        return super().call(inputs, outputs, training=training)


def transformer_without_residual(tokenizer: Tokenizer, **settings: Any) -> keras.Model:
    with mock.patch.object(block, "Residual", Disconnected):
        return transformer(tokenizer, **settings)
