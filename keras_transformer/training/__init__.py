"""Training of a `Seq2Seq`, or of any model that predicts logits of tokens.

Loss, metrics, learning rate schedule and callbacks for `compile` and `fit` of Keras.
Loss and metrics take int targets `(batch, target_length)` and logits
`(batch, target_length, vocabulary_size)`. The target ids determine the padding; a Keras
mask on the logits is ignored.
"""

from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.checkpoints import (
    Checkpoints,
    SavedCheckpoint,
    list_checkpoints,
    load_checkpoint,
)
from keras_transformer.training.freezing import freeze
from keras_transformer.training.lora import enable_lora, merge_lora
from keras_transformer.training.losses import LabelSmoothedCrossEntropy
from keras_transformer.training.metrics import MaskedTokenAccuracy, Perplexity
from keras_transformer.training.non_finite_loss import NonFiniteLoss
from keras_transformer.training.pipeline import Pipeline
from keras_transformer.training.r_drop import r_drop_loss
from keras_transformer.training.schedules import WarmupDecay, WarmupInverseSquareRoot
from keras_transformer.training.skip_non_finite import SkipNonFinite
from keras_transformer.training.token_trainer import TokenTrainer
from keras_transformer.training.training_progress import TrainingProgress
from keras_transformer.training.translation_quality import TranslationQuality

__all__ = [
    "Checkpoints",
    "LabelSmoothedCrossEntropy",
    "MaskedTokenAccuracy",
    "NonFiniteLoss",
    "Perplexity",
    "Pipeline",
    "SavedCheckpoint",
    "SkipNonFinite",
    "TokenTrainer",
    "TrainingProgress",
    "TranslationQuality",
    "WarmupDecay",
    "WarmupInverseSquareRoot",
    "average_checkpoints",
    "enable_lora",
    "freeze",
    "list_checkpoints",
    "load_checkpoint",
    "merge_lora",
    "r_drop_loss",
]
