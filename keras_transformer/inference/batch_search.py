"""A search of a batch of sources, which every backend can trace."""

from typing import NamedTuple

from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.decoding import (
    ModelState,
    OutputLength,
    SearchInputs,
    SearchResult,
    run_search,
)
from keras_transformer.decoding.lengths import output_lengths, smaller
from keras_transformer.decoding.random_numbers import (
    combine,
    key_of_array,
    key_of_tokens,
)
from keras_transformer.inference.request import Request
from keras_transformer.inference.sequence_model import SequenceModel
from keras_transformer.inference.source_arrays import Sources, without_embedding
from keras_transformer.types import Size, TokenIds


class PreparedSearch(NamedTuple):
    """The arguments of `run_search`."""

    inputs: SearchInputs  # the constraints
    state: ModelState  # that of the model before the first step
    max_length: Size  # the maximum number of steps
    capacity: Size  # the number of steps that the state has room for


def search_batch(
    model: SequenceModel,
    sources: Sources,
    request: Request,
    prefixes: TokenIds | None = None,
    seed: Size = 0,
    phrases: TokenIds | None = None,
) -> SearchResult:
    """Decodes a batch; the arguments are those of `prepare_search`."""
    prepared = prepare_search(model, sources, request, prefixes, seed, phrases)
    return run_search(request.search, model, *prepared)


def prepare_search(
    model: SequenceModel,
    sources: Sources,  # int (batch, source_length), padded; or arrays (batch, ...)
    request: Request,
    prefixes: TokenIds | None = None,  # int (batch, prefix_length), padded
    seed: Size = 0,  # int32 () or (batch,)
    phrases: TokenIds | None = None,  # int (batch, phrases, phrase_length), padded
    full_capacity: bool = False,  # whether the state has room for `max_length` steps
) -> PreparedSearch:
    """Encodes sources and computes the constraints of their search."""
    sources = model.prepare_sources(sources)
    inputs = search_inputs(model, sources, request, prefixes, seed, phrases)
    source_length = ops.shape(inputs.source_mask)[1]
    max_length, capacity = max_length_and_capacity(
        model, source_length, request.max_length
    )
    capacity = max_length if full_capacity else capacity
    search = request.search
    state = model.start_decoding(
        sources, search.num_beams, capacity, search.needs_attention
    )
    return PreparedSearch(inputs, state, max_length, capacity)


def max_length_and_capacity(
    model: SequenceModel, source_length: Size, max_length: OutputLength | None
) -> tuple[Size, Size]:
    """Returns the maximum number of steps, and that of `first_part`."""
    longest = model.max_output_length(source_length, max_length)
    return longest, smaller(source_length + 8, longest)  # few outputs are longer


def search_inputs(
    model: SequenceModel,
    sources: Sources,
    request: Request,
    prefixes: TokenIds | None = None,
    seed: Size = 0,
    phrases: TokenIds | None = None,
) -> SearchInputs:
    """Returns the constraints of a search; see `prepare_search`."""
    source_mask = model.source_mask(sources)
    lengths = int32_sum(source_mask, axis=1)
    batch, source_length = ops.shape(source_mask)
    if model.source_spec is None:
        keys = key_of_tokens(sources, source_mask)
    else:
        keys = key_of_array(without_embedding(sources))
    if prefixes is None:
        prefixes = ops.zeros((batch, 0), "int32")
    if phrases is None:
        phrases = ops.zeros((batch, 0, 0), "int32")
    longest = model.max_output_length(source_length, request.max_length)
    limits = ops.minimum(model.max_output_lengths(lengths, request.max_length), longest)
    return SearchInputs(
        limits=ops.where(lengths > 0, limits, 1),
        min_lengths=output_lengths(request.min_length, lengths),
        prefixes=prefixes,
        source_mask=source_mask,
        keys=combine(keys, seed),
        phrases=phrases,
    )
