"""Searches for the most probable outputs of a model.

A search (`GreedySearch`, `BeamSearch`, `Sampling`) decodes any `DecodingModel`. It can
be combined with logits processors, length penalties, minimum and maximum lengths, and
prefixes. `run_search` runs it. `keras_transformer.Seq2Seq.generate` compiles the parts
of `run_search`, `first_part` and `run_rest`, one by one.
"""

from keras_transformer.decoding.banned_texts import BannedTexts
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.decoding_model import (
    DecodingModel,
    ModelState,
    StateAxes,
)
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.independent_search import IndependentSearch
from keras_transformer.decoding.length_penalties import (
    GNMTLengthPenalty,
    LengthPenalty,
    PowerLengthPenalty,
    coverage_penalty,
)
from keras_transformer.decoding.lengths import OutputLength, RelativeLength
from keras_transformer.decoding.logits_processors import (
    BannedSequences,
    History,
    LogitsProcessor,
    NoRepeatNGram,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.decoding.loop import run_search
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.search import (
    Search,
    SearchInputs,
    SearchResult,
    SearchState,
)

__all__ = [
    "BannedSequences",
    "BannedTexts",
    "BeamSearch",
    "DecodingModel",
    "GNMTLengthPenalty",
    "GreedySearch",
    "History",
    "IndependentSearch",
    "LengthPenalty",
    "LogitsProcessor",
    "ModelState",
    "NoRepeatNGram",
    "OutputLength",
    "PowerLengthPenalty",
    "RelativeLength",
    "RepetitionPenalty",
    "Sampling",
    "Search",
    "SearchInputs",
    "SearchResult",
    "SearchState",
    "StateAxes",
    "SuppressTokens",
    "coverage_penalty",
    "run_search",
]
