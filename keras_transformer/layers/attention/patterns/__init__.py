"""Attention patterns with a cost that grows linearly with the length."""

from keras_transformer.layers.attention.patterns.attention_pattern import (
    AttentionPattern,
)
from keras_transformer.layers.attention.patterns.global_local import GlobalLocal
from keras_transformer.layers.attention.patterns.local_window import LocalWindow
from keras_transformer.layers.attention.patterns.strided import Strided

__all__ = ["AttentionPattern", "GlobalLocal", "LocalWindow", "Strided"]
