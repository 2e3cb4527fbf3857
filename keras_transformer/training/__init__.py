"""Schedule, loss, metrics and callbacks for a `Seq2Seq` or any model of token logits.

The learning-rate schedule of the paper, the label-smoothed loss and the two metrics
all work on integer targets of shape `(batch, target_length)` and logits of shape
`(batch, target_length, vocabulary_size)`. The target ids alone determine what is
padding: a Keras mask on the logits changes nothing, and no position is masked twice.
They are ordinary Keras objects: hand them to `compile`, and `fit` and `evaluate` do the
rest.
"""

from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.consistency import consistency_loss
from keras_transformer.training.freezing import freeze
from keras_transformer.training.losses import LabelSmoothedCrossEntropy
from keras_transformer.training.metrics import MaskedTokenAccuracy, Perplexity
from keras_transformer.training.non_finite_loss import NonFiniteLoss
from keras_transformer.training.progress import TrainingProgress
from keras_transformer.training.quality import TranslationQuality
from keras_transformer.training.schedules import WarmupInverseSquareRoot
from keras_transformer.training.skip_non_finite import SkipNonFinite
from keras_transformer.training.token_trainer import TokenTrainer

__all__ = [
    "Checkpoints",
    "LabelSmoothedCrossEntropy",
    "MaskedTokenAccuracy",
    "NonFiniteLoss",
    "Perplexity",
    "SkipNonFinite",
    "TokenTrainer",
    "TrainingProgress",
    "TranslationQuality",
    "WarmupInverseSquareRoot",
    "average_checkpoints",
    "consistency_loss",
    "freeze",
]
