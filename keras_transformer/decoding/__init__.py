"""Searches for the best output of a model known only by its step function.

A strategy (`GreedySearch`, `BeamSearch`, `Sampling`) composes with rules for what may
come next (`logits_processors`), penalties, least and greatest lengths, and prefixes.
"""

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.length_penalties import (
    GNMTLengthPenalty,
    LengthPenalty,
    PowerLengthPenalty,
    coverage_penalty,
)
from keras_transformer.decoding.lengths import RelativeLength
from keras_transformer.decoding.logits_processors import (
    BannedSequences,
    History,
    LogitsProcessor,
    NoRepeatNGram,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.decoding.loop import run
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.search import Search, SearchResult, Sentences, StepModel

__all__ = [
    "BannedSequences",
    "BeamSearch",
    "GNMTLengthPenalty",
    "GreedySearch",
    "History",
    "LengthPenalty",
    "LogitsProcessor",
    "StepModel",
    "NoRepeatNGram",
    "PowerLengthPenalty",
    "RelativeLength",
    "RepetitionPenalty",
    "Sampling",
    "Search",
    "SearchResult",
    "Sentences",
    "SuppressTokens",
    "coverage_penalty",
    "run",
]
