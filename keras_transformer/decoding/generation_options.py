"""Options of a search by name, and the search that they describe."""

import dataclasses
from typing import Any, cast

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.length_penalties import GNMTLengthPenalty
from keras_transformer.decoding.lengths import OutputLength
from keras_transformer.decoding.logits_processors import (
    LogitsProcessor,
    NoRepeatNGram,
    RepetitionPenalty,
)
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.search import Search
from keras_transformer.types import Config, Options
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    SearchOptions,
)

_SEARCHES = (BeamSearch, Sampling)
# Options in other libraries, and the arguments that are written instead.
OTHER_NAMES = {
    "beam_size": "`num_beams={!r}`",
    "beam_width": "`num_beams={!r}`",
    "do_sample": "`temperature` to sample, or `num_beams` to search",
    "force_words_ids": "`constraints={!r}`",
    "max_decoding_length": "`max_length={!r}`",
    "max_new_tokens": "`max_length={!r}`",
    "num_return_sequences": "`num_hypotheses={!r}`",
    "num_samples": "`num_hypotheses={!r}`",
    "sampling_temperature": "`temperature={!r}`",
    "sampling_topk": "`top_k={!r}`",
    "sampling_topp": "`top_p={!r}`",
    "stop_strings": "`stop={!r}`",
}


def search_from_options(options: GenerationOptions) -> Search:
    """Returns the search that options describe, without lengths, seed and `stop`.

    Args:
        options: the `GenerationOptions`.

    Returns:
        `Sampling`, `GreedySearch` or `BeamSearch`.

    Raises:
        ValueError: if the search does not support an option.

    Example:

    >>> search_from_options(GenerationOptions(num_beams=1, no_repeat_ngram_size=3))
    GreedySearch(logits_processors=(NoRepeatNGram(size=3),))
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
    if options.num_beams == 1:
        return GreedySearch(processors)
    return BeamSearch(
        options.num_beams,
        options.length_penalty,
        options.num_hypotheses,
        logits_processors=processors,
        num_beam_groups=options.num_beam_groups,
        diversity_penalty=options.diversity_penalty,
    )


def options_from_search(
    search: Search,
    max_length: OutputLength | None = None,
    min_length: OutputLength = 0,
) -> GenerationOptions:
    """Returns the options that describe a search, the inverse of `search_from_options`.

    Args:
        search: the search.
        max_length: maximum length of the outputs.
        min_length: minimum length of the outputs.

    Returns:
        `GenerationOptions`.

    Raises:
        ValueError: if a part of the search has no option.

    Example:

    >>> options_from_search(BeamSearch(num_beams=5), max_length=20).num_beams
    5
    """
    for name, length in (("max_length", max_length), ("min_length", min_length)):
        if not isinstance(length, int | None):
            raise ValueError(
                f"`{name}` must be an int to be an option; received `{name}={length}`."
            )
    found: Config = {
        name: getattr(search, name)
        for name in ("num_beams", "num_hypotheses", "num_beam_groups")
        if hasattr(search, name)
    }
    if isinstance(search, Sampling):
        found |= {"samples": True, "num_beams": 1}
        found |= {name: getattr(search, name) for name in ("top_k", "top_p")}
        found["temperature"] = search.temperature
    elif isinstance(search, GreedySearch):
        found |= {"num_beams": 1, "length_penalty": 0.0}
    elif isinstance(search, BeamSearch):
        found["length_penalty"] = _exponent(search)
        found["diversity_penalty"] = search.diversity_penalty
    for processor in getattr(search, "logits_processors", ()):
        if isinstance(processor, RepetitionPenalty):
            found["repetition_penalty"] = processor.factor
        if isinstance(processor, NoRepeatNGram):
            found["no_repeat_ngram_size"] = processor.size
    options = GenerationOptions(
        max_length=cast(int | None, max_length),
        min_length=cast(int, min_length),
        **found,
    )
    _check_described(search, search_from_options(options))
    return options


def _exponent(search: BeamSearch) -> float:
    penalty = search.length_penalty
    if isinstance(penalty, GNMTLengthPenalty):
        return penalty.alpha
    if callable(penalty):
        raise _no_option(search, "length_penalty", penalty)
    return penalty


def _check_described(search: Search, described: Search) -> None:
    """Raises `ValueError` if a search is not the one that its options describe."""
    if type(search) is not type(described):
        raise ValueError(
            "The search must be one that options describe: a `GreedySearch`, a "
            "`Sampling`, or a `BeamSearch` of several beams; received "
            f"`{search!r}`."
        )
    parts, expected = _parts(search), _parts(described)
    for name, part in parts.items():
        if part != expected[name]:
            raise _no_option(search, name, part)


def _parts(search: Search) -> dict[str, object]:
    """Returns the arguments of a search; the order of its processors has no effect."""
    parts = {name: getattr(search, name) for name in _argument_names(type(search))}
    parts["logits_processors"] = sorted(parts["logits_processors"], key=repr)
    if isinstance(search, BeamSearch):
        parts["length_penalty"] = _exponent(search)
    return parts


def _no_option(search: Search, name: str, part: object) -> ValueError:
    return ValueError(
        f"The search must be one that options describe; received `{name}={part!r}` of "
        f"a `{type(search).__name__}`, which has no option. Pass a search that is "
        "complete, and no options."
    )


def is_option_name(name: str) -> bool:
    """Returns whether an argument is for a search, here or in other libraries."""
    names = SearchOptions.__annotations__.keys() | OTHER_NAMES
    return name in names or any(name in _argument_names(kind) for kind in _SEARCHES)


def chosen_search(
    function: str,
    search: Search | None,
    default: Search,
    options: SearchOptions | Options,
) -> Search:
    """Returns the search of a call: one that is given, or a default with options.

    Args:
        function: str, name of the function that is called, for errors.
        search: the search that is given, or `None`.
        default: the search that the options change.
        options: the options that are given, by name; `None` = that of `default`.

    Returns:
        The search.

    Raises:
        TypeError: if there is no such option.
        ValueError: if options are given together with a search, contradict each other
            or are out of their range, or `default` has a part without an option.
    """
    for name in options:
        if name not in SearchOptions.__annotations__:
            raise _unknown_option(function, name, options)
    given: Config = {
        name: value for name, value in options.items() if value is not None
    }
    if not given:
        return search or default
    if search is not None:
        name, value = next(iter(given.items()))
        raise ValueError(
            f"`{name}` must not be given together with `search`; received "
            f"`{name}={value!r}` and `search={search!r}`. Put it into the search, or "
            "remove `search`."
        )
    return search_from_options(options_from_search(default).with_given(**given))


def _unknown_option(
    function: str, name: str, options: SearchOptions | Options
) -> TypeError:
    """Returns an error that names the option of this library, if it has one."""
    value = cast(Options, options)[name]
    kinds = [kind for kind in _SEARCHES if name in _argument_names(kind)]
    if name in OTHER_NAMES:
        remedy = f"Pass {OTHER_NAMES[name].format(value)}."
    elif kinds:
        remedy = f"Pass `search={kinds[0].__name__}({name}={value!r})`."
    else:
        return TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return TypeError(
        f"`{name}` must not be an argument of `{function}`; received "
        f"`{name}={value!r:.80}`. {remedy}"
    )


def _argument_names(search: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cast(Any, search))]
