"""Splits texts into other subwords in every epoch: subword regularization.

The sentencepiece package samples too, but its random numbers differ from one process to
the next whatever the seed. Here each split is a function of the seed, the epoch and the
line. It is made from the token ids alone, so that the text need not be kept.
"""

from keras_transformer.dataset.subword_sampling.bpe_dropout import BPEDropout
from keras_transformer.dataset.subword_sampling.subword_sampling import SubwordSampling
from keras_transformer.dataset.subword_sampling.unigram_sampling import UnigramSampling

__all__ = ["BPEDropout", "SubwordSampling", "UnigramSampling"]
