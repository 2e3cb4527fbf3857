"""Searches for the best output of a model known only by its step function."""

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.search import Search, SearchResult, length_penalty

__all__ = [
    "BeamSearch",
    "GreedySearch",
    "Search",
    "SearchResult",
    "length_penalty",
]
