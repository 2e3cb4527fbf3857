"""Decoding step by step: methods of `Seq2Seq`, which a search drives."""

from typing import Any

import keras
from keras import ops

from keras_transformer.backend.few_rows import are_few
from keras_transformer.backend.writing_in_place import write_slice
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


def start_decoding(
    model: Any,
    encoder_token_ids: Any,
    num_beams: int,
    max_length: Any,
    return_attention: bool = False,
) -> dict[str, Any]:
    """Encodes the sources and makes the state of the first decoding step.

    The beams of a sentence are query positions of one attention. Their keys
    and values share one self-attention cache of `max_length * num_beams`
    entries, which is never reordered: `"ancestors"` says which entries are
    the history of each beam. Those of the source are there once a sentence.

    Args:
        model: the `Seq2Seq`.
        encoder_token_ids: int tensor `(batch, source_length)`.
        num_beams: int, hypotheses of each sentence.
        max_length: int or int scalar tensor, number of steps there may be.
        return_attention: whether each step leaves in the state what the newest
            tokens attended to.

    Returns:
        A dictionary: `"caches"` (see `DecoderStack.empty_caches`),
        `"source_mask"`, boolean `(batch, source_length)`, and
        `"ancestors"`, boolean `(batch, num_beams, max_length * num_beams)`; with
        `return_attention=True` also `"attention"`, float32
        `(batch, num_beams, source_length)`, that of the last block, a mean over
        its heads.
    """
    encoder_token_ids = ops.convert_to_tensor(encoder_token_ids)
    batch, entries = ops.shape(encoder_token_ids)[0], max_length * num_beams
    encoded = model.encode(encoder_token_ids, training=False)
    state = {
        "caches": model.decoder.empty_caches(encoded, entries),
        "source_mask": padding_mask(encoder_token_ids, model.pad_token_id),
        "ancestors": ops.zeros((batch, num_beams, entries), "bool"),
    }
    if return_attention:
        shape = (batch, num_beams, ops.shape(encoder_token_ids)[1])
        state["attention"] = ops.zeros(shape, "float32")
    return state


def decode_step(
    model: Any, token_ids: Any, index: Any, state: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Computes the logits of the next tokens.

    Args:
        model: the `Seq2Seq`.
        token_ids: int tensor `(batch, num_beams)`, the newest tokens.
        index: int32 scalar tensor, their position; the start token's is 0.
        state: from `start_decoding` or the step before.

    Returns:
        Logits `(batch, num_beams, vocabulary_size)` and the new state.
    """
    batch, num_beams = ops.shape(token_ids)
    entries = ops.arange(ops.shape(state["ancestors"])[2], dtype="int32")
    itself = ops.broadcast_to(
        ops.eye(num_beams, dtype="bool"), (batch, *2 * [num_beams])
    )
    ancestors = write_slice(state["ancestors"], itself, index * num_beams, axis=2)
    positions = ops.broadcast_to(index, (num_beams,))
    x = model._embed_target(token_ids, positions, training=False)
    x, caches, *scores = model.decoder.step(
        x,
        state["caches"],
        index * num_beams,
        attention_mask=ancestors,
        encoder_padding_mask=state["source_mask"],
        positions=positions,
        cache_positions=ops.floor_divide(entries, num_beams),
        return_attention_scores="attention" in state,
    )
    state = {**state, "caches": caches, "ancestors": ancestors}
    if scores:
        cross = ops.cast(scores[0]["cross_attention"], "float32")
        state["attention"] = ops.mean(cross, axis=1)
    return model._logits(x, state.get("output_kernel")), state


def reorder_state(model: Any, state: dict[str, Any], parents: Any) -> dict[str, Any]:
    """Lets each beam go on from another one.

    Args:
        model: the `Seq2Seq`.
        state: from `decode_step`.
        parents: int tensor `(batch, num_beams)`; beam `i` goes on from what
            was beam `parents[:, i]`.

    Returns:
        The new state.
    """
    ancestors = ops.take_along_axis(state["ancestors"], parents[:, :, None], axis=1)
    return {**state, "ancestors": ancestors}


def prepare_state(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Adds what the steps of one compiled loop share: output weights, transposed once.

    Args:
        model: the `Seq2Seq`.
        state: from `start_decoding`.

    Returns:
        The new state, with `"output_kernel"` `(hidden_dim, vocabulary_size)` if the
        output's weights are those of the embedding, and there are not too few rows for
        that to be worth while.
    """
    batch, num_beams = state["ancestors"].shape[:2]
    if model.tie_embeddings == "none" or are_few(batch, num_beams):
        return state
    embeddings = ops.cast(model.target_embedding.embeddings, model.compute_dtype)
    return {**state, "output_kernel": ops.transpose(embeddings)}


def extend_state(model: Any, state: dict[str, Any], max_length: Any) -> dict[str, Any]:
    """Makes room for more steps.

    Args:
        model: the `Seq2Seq`.
        state: from `start_decoding` or `decode_step`.
        max_length: int or int scalar tensor, number of steps there may be, at least
            as many as there is room for.

    Returns:
        The new state.
    """
    ancestors = state["ancestors"]
    batch, num_beams, entries = ops.shape(ancestors)
    more = ops.zeros((batch, num_beams, max_length * num_beams - entries), "bool")
    caches = [
        (own.extended(max_length * num_beams), source)
        for own, source in state["caches"]
    ]
    ancestors = ops.concatenate([ancestors, more], axis=2)
    return {**state, "caches": caches, "ancestors": ancestors}


def take_state(model: Any, state: dict[str, Any], rows: Any) -> dict[str, Any]:
    """Leaves sentences out.

    Args:
        model: the `Seq2Seq`.
        state: from `start_decoding` or `decode_step`.
        rows: int tensor `(count,)`, the sentences to keep.

    Returns:
        The new state.
    """
    own = {name: value for name, value in state.items() if name != "output_kernel"}
    taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), own)
    return {**state, **taken}


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
