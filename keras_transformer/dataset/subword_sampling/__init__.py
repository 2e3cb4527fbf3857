"""Subword regularization: texts are split into different subwords in each epoch.

The sentencepiece package cannot reproduce its samples, since its random numbers differ
between processes. In this package, each split is a function of the seed, the epoch and
the line. The samplers split token ids, so the text is not stored.
"""

from keras_transformer.dataset.subword_sampling.bpe_dropout import BPEDropout
from keras_transformer.dataset.subword_sampling.subword_sampling import SubwordSampling
from keras_transformer.dataset.subword_sampling.unigram_sampling import UnigramSampling

__all__ = ["BPEDropout", "SubwordSampling", "UnigramSampling"]
