"""LSTM with attention of Keras layers.

Encoder and decoder have the same number of layers. The layers of the encoder are
bidirectional, and their final states are the initial states of the decoder. The decoder
attends to the encoder with the score "general" of Luong et al. There is no input
feeding, so all positions of a target are computed at once.

References:
    Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and
    Translate, section 3; Luong et al. 2015, Effective Approaches to Attention-based
    Neural Machine Translation, section 3.1.
"""

from typing import Any

import keras
from keras import ops

from ablation_models.tokens import HIDDEN_DIM, is_token, tied_embedding, token_inputs
from keras_transformer import Tokenizer

NUM_LAYERS, UNITS = 2, 224  # 2.37 million parameters with 8,000 subwords


def lstm(tokenizer: Tokenizer, dropout: float) -> keras.Model:
    inputs = token_inputs()
    source_mask = is_token(inputs["encoder_token_ids"], tokenizer)
    embedding = tied_embedding(tokenizer)

    def embed(token_ids: Any) -> Any:
        return keras.layers.Dropout(dropout)(embedding(token_ids) * HIDDEN_DIM**0.5)

    encoded, states = encode(embed(inputs["encoder_token_ids"]), source_mask, dropout)
    x = embed(inputs["decoder_token_ids"])
    for state in states:
        x = keras.layers.LSTM(UNITS, return_sequences=True)(x, initial_state=state)
        x = keras.layers.Dropout(dropout)(x)
    query = keras.layers.Dense(UNITS, use_bias=False)(x)
    context = keras.layers.Attention()([query, encoded], mask=[None, source_mask])
    x = keras.layers.Concatenate()([context, x])
    x = keras.layers.Dense(HIDDEN_DIM, activation="tanh")(x)
    x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, embedding(x, reverse=True), name="lstm")


def encode(x: Any, mask: Any, dropout: float) -> tuple[Any, list[list[Any]]]:
    """Returns the outputs of the last layer, and the final states of each layer."""
    states = []
    for _ in range(NUM_LAYERS):
        layer = keras.layers.LSTM(UNITS // 2, return_sequences=True, return_state=True)
        x, *ends = keras.layers.Bidirectional(layer)(x, mask=mask)
        x = keras.layers.Dropout(dropout)(x)
        forward, backward = ends[:2], ends[2:]
        pairs = zip(forward, backward, strict=True)
        states.append([ops.concatenate(pair, axis=-1) for pair in pairs])
    return x, states
