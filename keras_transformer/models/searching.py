"""From sources to a `SearchResult`: what a `Seq2Seq` and an `Ensemble` search alike."""

from typing import Any

from keras import ops

from keras_transformer.decoding import (
    RelativeLength,
    Search,
    SearchResult,
    Sentences,
    StepModel,
    run,
)
from keras_transformer.decoding.lengths import DEFAULT_MAX_LENGTH, lengths_of
from keras_transformer.decoding.random_numbers import combine, key_of_tokens
from keras_transformer.layers import padding_mask


def search(
    model: Any,
    encoder_token_ids: Any,
    search: Search,
    max_length: int | RelativeLength | None = None,
    min_length: int | RelativeLength = 0,
    prefixes: Any = None,
    seed: Any = 0,
) -> SearchResult:
    """Decodes a batch of token ids; can be traced by every backend.

    `generate` compiles this and `export` traces it.

    Args:
        model: the `Seq2Seq`.
        encoder_token_ids: int tensor `(batch, source_length)`, padded.
        search: the strategy.
        max_length: int or `RelativeLength`, greatest output length in tokens, the
            end token included. `None` = 50 more than the sentence's own source, as
            in section 6.1 of the paper. `max_target_length` holds as well.
        min_length: int or `RelativeLength`, least output length.
        prefixes: int tensor `(batch, prefix_length)`, the tokens that each output
            begins with, padded; `None` = none.
        seed: int32 tensor, a scalar or `(batch,)`, where random numbers start.

    Returns:
        A `SearchResult` of tensors.
    """
    known = step_model(model)
    source_length = ops.shape(encoder_token_ids)[1]
    most = max_steps(model, source_length, max_length)
    few = usual_steps(source_length, most)
    sentences, first = begin_search(
        model, encoder_token_ids, search, max_length, min_length, prefixes, seed, few
    )
    first = first._replace(state=model.prepare_state(first.state))
    return run(search, known, sentences, first, few, most)


def begin_search(
    model: Any,
    encoder_token_ids: Any,
    search: Search,
    max_length: int | RelativeLength | None,
    min_length: int | RelativeLength,
    prefixes: Any,
    seed: Any,
    room: Any = None,
) -> tuple[Sentences, Any]:
    """What a search is asked for, and its `Progress` before the first step.

    The arguments are those of `search`; `room` is how many steps there is room for in
    the model's state at first, all of them if `None`.
    """
    token_ids = ops.convert_to_tensor(encoder_token_ids, "int32")
    real = padding_mask(token_ids, model.pad_token_id)
    lengths = ops.sum(ops.cast(real, "int32"), axis=1)
    if prefixes is None:
        prefixes = ops.zeros((ops.shape(token_ids)[0], 0), "int32")
    steps = max_steps(model, ops.shape(token_ids)[1], max_length)
    limits = ops.minimum(max_steps(model, lengths, max_length), steps)
    sentences = Sentences(
        limits=ops.where(lengths > 0, limits, 1),
        min_lengths=lengths_of(min_length, lengths),
        prefixes=prefixes,
        source_mask=real,
        keys=combine(key_of_tokens(token_ids, real), seed),
    )
    state = model.start_decoding(
        token_ids,
        search.num_beams,
        steps if room is None else room,
        search.needs_attention,
    )
    return sentences, search.start(step_model(model), sentences, state, steps)


def max_steps(
    model: Any, source_lengths: Any, max_length: int | RelativeLength | None
) -> Any:
    """The greatest output lengths of sources, an int for an int."""
    max_length = DEFAULT_MAX_LENGTH if max_length is None else max_length
    steps, limit = lengths_of(max_length, source_lengths), model.max_target_length
    if limit is None:
        return steps
    return min(steps, limit) if isinstance(steps, int) else ops.minimum(steps, limit)


def usual_steps(source_length: Any, most: Any) -> Any:
    """How many steps few outputs need more than, at most `most`."""
    few = source_length + 8
    return min(few, most) if isinstance(most, int) else ops.minimum(few, most)


def step_model(model: Any) -> StepModel:
    """What a search knows of a `Seq2Seq`."""
    return StepModel(
        model.decode_step,
        model.reorder_state,
        model.extend_state,
        model.take_state,
        model.start_token_id,
        model.end_token_id,
        model.pad_token_id,
    )
