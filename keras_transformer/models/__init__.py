"""The model: embed, encode, decode, logits; one decoding step; named sizes."""

from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.presets import PRESETS
from keras_transformer.models.seq2seq import Seq2Seq

__all__ = ["PRESETS", "Ensemble", "Seq2Seq"]
