"""Models: `Seq2Seq`, `CausalLM`, `TextEncoder`, `TextClassifier`, `TokenClassifier`.

And `Ensemble`, and named sizes.
"""

from keras_transformer.models.causal_lm import CausalLM
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.generative_model import GenerativeModel
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.text_classifier import TextClassifier
from keras_transformer.models.text_encoder import TextEncoder
from keras_transformer.models.token_classifier import TokenClassifier
from keras_transformer_runtime.labels.predictions import (
    Classification,
    TaggedSentence,
)
from keras_transformer_runtime.presets import PRESETS

__all__ = [
    "PRESETS",
    "CausalLM",
    "Ensemble",
    "GenerativeModel",
    "Seq2Seq",
    "Classification",
    "TextClassifier",
    "TextEncoder",
    "TaggedSentence",
    "TokenClassifier",
]
