"""The Transformer, and what is taken out of it."""

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
    **settings: Any,
) -> keras.Model:
    return Seq2Seq.from_preset(
        "transformer_tiny",
        source_tokenizer=tokenizer,
        normalize_first=True,
        positions=positions(),
        max_source_length=MAX_LENGTH,
        max_target_length=MAX_LENGTH,
        **settings,
    )


class Disconnected(Residual):
    """Passes on what the sub-layer made, without what went into it."""

    def call(self, inputs, outputs, training=None):
        return super().call(ops.zeros_like(inputs), outputs, training=training)


def transformer_without_residual(tokenizer: Tokenizer, **settings: Any) -> keras.Model:
    with mock.patch.object(block, "Residual", Disconnected):
        return transformer(tokenizer, **settings)
