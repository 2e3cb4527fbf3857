"""The model: embed, encode, decode, logits; one decoding step; named sizes."""

from keras_transformer.seq2seq.ensemble import Ensemble
from keras_transformer.seq2seq.model import Seq2Seq
from keras_transformer.seq2seq.presets import PRESETS

__all__ = ["PRESETS", "Ensemble", "Seq2Seq"]
