"""Searches of options, and options of searches."""

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.logits_processors import (
    LogitsProcessor,
    NoRepeatNGram,
    RepetitionPenalty,
)
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.search import Search
from keras_transformer_runtime.engines.generation_options import GenerationOptions


def search_of(options: GenerationOptions) -> Search:
    """Returns the search with options.

    Args:
        options: the `GenerationOptions`.

    Returns:
        `Sampling` or `BeamSearch`.
    """
    processors: list[LogitsProcessor] = []
    if options.repetition_penalty != 1:
        processors.append(RepetitionPenalty(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        processors.append(NoRepeatNGram(options.no_repeat_ngram_size))
    if options.samples:
        return Sampling(
            options.num_hypotheses,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            logits_processors=processors,
        )
    return BeamSearch(
        options.num_beams,
        options.length_penalty,
        num_hypotheses=options.num_hypotheses,
        logits_processors=processors,
        num_beam_groups=options.num_beam_groups,
        diversity_penalty=options.diversity_penalty,
    )


def options_of(search: Search) -> GenerationOptions:
    """Returns the options of a search.

    Args:
        search: a `GreedySearch`, `BeamSearch` or `Sampling`.

    Returns:
        `GenerationOptions`.

    Raises:
        ValueError: if a part of the search has no option.
    """
    repetition_penalty, no_repeat_ngram_size = 1.0, 0
    for processor in getattr(search, "logits_processors", ()):
        if isinstance(processor, RepetitionPenalty):
            repetition_penalty = processor.factor
        elif isinstance(processor, NoRepeatNGram):
            no_repeat_ngram_size = processor.size
    if isinstance(search, Sampling):
        options = GenerationOptions(
            num_beams=1,
            num_hypotheses=search.num_samples,
            samples=True,
            temperature=search.temperature,
            top_k=search.top_k,
            top_p=search.top_p,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
        )
    elif isinstance(search, GreedySearch):
        options = GenerationOptions(
            num_beams=1,
            length_penalty=0.0,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
        )
        beams = search_of(options)
        assert isinstance(beams, BeamSearch)
        if search == GreedySearch(beams.logits_processors):
            return options
    elif isinstance(search, BeamSearch) and isinstance(
        search.length_penalty, int | float
    ):
        options = GenerationOptions(
            num_beams=search.num_beams,
            length_penalty=float(search.length_penalty),
            num_hypotheses=search.num_hypotheses,
            num_beam_groups=search.num_beam_groups,
            diversity_penalty=search.diversity_penalty,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
        )
    else:
        raise _no_options(search)
    if search_of(options) != search:
        raise _no_options(search)
    return options


def _no_options(search: Search) -> ValueError:
    return ValueError(
        "`search` must consist of the options of `GenerationOptions`, such as "
        f"`num_beams` and `length_penalty`; received `search={search}`. Use "
        '`format="saved_model"`, which supports any search.'
    )
