"""Deprecated name of `keras_transformer.models`, which the next version removes."""

import warnings

from keras_transformer.models import PRESETS, Ensemble, Seq2Seq

__all__ = ["PRESETS", "Ensemble", "Seq2Seq"]

warnings.warn(
    "`keras_transformer.seq2seq` is deprecated and will be removed in the next "
    "version. Use `keras_transformer.models` instead.",
    FutureWarning,
    stacklevel=2,
)
