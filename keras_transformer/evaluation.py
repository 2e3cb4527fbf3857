"""Metrics of hypotheses against references: BLEU, chrF and error rates.

Each function takes `hypotheses`, one string per item, and `references`, one entry per
item: a string, or a list of strings if an item has several correct answers. BLEU and
chrF are computed by sacreBLEU, from 0 to 100, higher is better. Error rates are
fractions, 0 if all hypotheses are correct, lower is better. `text_scores` computes all
of them, in percent.
"""

from keras_transformer_runtime.packages import require_modules

require_modules(["rapidfuzz", "sacrebleu"], "`keras_transformer.evaluation`")

from keras_transformer_runtime.evaluation import (
    METRICS,
    CorpusScore,
    Metric,
    bleu,
    character_error_rate,
    check_tokenize,
    chrf,
    sequence_error_rate,
    text_scores,
    token_error_rate,
    translation_scores,
)

__all__ = [
    "METRICS",
    "CorpusScore",
    "Metric",
    "bleu",
    "character_error_rate",
    "check_tokenize",
    "chrf",
    "sequence_error_rate",
    "text_scores",
    "token_error_rate",
    "translation_scores",
]
