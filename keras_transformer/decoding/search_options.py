"""Errors for options of a search that are passed to a function instead of a search."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.sampling import Sampling


def _options_of(search: type) -> dict[str, str]:
    return {field.name: f"{field.name}={{}}" for field in dataclasses.fields(search)}


BEAM_SEARCH, SAMPLING = _options_of(BeamSearch), _options_of(Sampling)
ONLY_SAMPLING = SAMPLING.keys() - BEAM_SEARCH.keys()
# Options of a search, and names of other libraries, with what is written instead.
SEARCH = {
    **BEAM_SEARCH,
    **SAMPLING,
    "beam_size": "num_beams={}",
    "beam_width": "num_beams={}",
    "do_sample": "",  # `Sampling` is named without an option
    "num_return_sequences": "num_hypotheses={}",
    "no_repeat_ngram_size": "logits_processors=[NoRepeatNGram({})]",
    "repetition_penalty": "logits_processors=[RepetitionPenalty({})]",
}
# The same for the arguments of a function that searches.
DECODING = {
    "max_decoding_length": "max_length={}",
    "max_new_tokens": "max_length={}",
    "force_words_ids": "constraints={}",
    "max_length": "max_length={}",
    "min_length": "min_length={}",
    "prefix": "prefix={}",
    "search": "search={}",
    "constraints": "constraints={}",
}


def refuse_search_options(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    """Raises `TypeError` for keyword arguments that a function does not have.

    For an option of a search, in this library or another one, the error names the right
    call.
    """
    if not options:
        return
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    explained = {n: x for n, x in options.items() if n in SEARCH or n in DECODING}
    if not explained:
        unknown = next(iter(options))
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown!r}")
    parameters = inspect.signature(function).parameters.values()
    accepted = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    raise search_options_error(name, accepted, explained)


def search_options_error(
    name: str, accepted: Sequence[str], options: Mapping[str, Any]
) -> TypeError:
    """Returns the error for options of a search that a function does not take.

    The function has the parameters `accepted`, of which those before `search` are
    required. The options are keys of `SEARCH` or `DECODING`.
    """
    searches = "search" in accepted
    direct = [(DECODING[n], repr(v)) for n, v in options.items() if n in DECODING]
    takes_all = all(template.split("=")[0] in accepted for template, _ in direct)
    is_itself = searches and takes_all
    required = accepted[: accepted.index("search")] if is_itself else ["inputs"]
    arguments = [argument for argument in required if argument != "self"]
    chosen = {n: SEARCH[n].format(repr(v)) for n, v in options.items() if n in SEARCH}
    if chosen:
        samples = options.get("do_sample") or chosen.keys() & ONLY_SAMPLING
        kind = "Sampling" if samples else "BeamSearch"
        arguments.append(f"{kind}({', '.join(filter(None, chosen.values()))})")
    arguments += [template.format(value) for template, value in direct]
    call = f"{name if is_itself else 'generate'}({', '.join(arguments)})"
    return TypeError(
        f"{', '.join(f'`{n}`' for n in options)} must not be an argument of `{name}`"
        f"{'' if searches else ', which decodes nothing'}; received "
        f"{', '.join(f'`{n}={v!r:.80}`' for n, v in options.items())}. "
        f"{'Call' if searches else 'To decode, call'} `{call}`."
    )
