"""Inputs and embeddings of the other architectures, equal to the Transformer's."""

from typing import Any

import keras
from keras import ops

from keras_transformer import Tokenizer

MAX_LENGTH = 256  # tokens of a source or a target
HIDDEN_DIM = 128  # that of `transformer_tiny`


def token_inputs() -> dict[str, Any]:
    return {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("encoder_token_ids", "decoder_token_ids")
    }


def is_token(token_ids: Any, tokenizer: Tokenizer) -> Any:
    """Returns a boolean mask, `False` at padding."""
    return ops.not_equal(token_ids, tokenizer.pad_token_id)


def tied_embedding(tokenizer: Tokenizer) -> keras.layers.Layer:
    """Returns an embedding for sources, targets and output."""
    return keras.layers.ReversibleEmbedding(
        tokenizer.vocabulary_size,
        HIDDEN_DIM,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=HIDDEN_DIM**-0.5),
    )
