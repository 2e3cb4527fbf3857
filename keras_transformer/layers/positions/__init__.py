"""Position schemes: encodings, rotary embeddings and biases."""

from keras_transformer.layers.positions.alibi_bias import AlibiBias
from keras_transformer.layers.positions.learned_positional_encoding import (
    LearnedPositionalEncoding,
)
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.positions.relative_position_bias import (
    RelativePositionBias,
)
from keras_transformer.layers.positions.rotary_embedding import RotaryEmbedding
from keras_transformer.layers.positions.scheme import PositionScheme

__all__ = [
    "AlibiBias",
    "LearnedPositionalEncoding",
    "PositionScheme",
    "PositionalEncoding",
    "RelativePositionBias",
    "RotaryEmbedding",
]
