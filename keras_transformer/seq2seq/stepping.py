"""Decoding step by step: methods of `Seq2Seq`, which a search drives."""

from typing import Any

from keras import ops

from keras_transformer.decoding import Search, SearchResult
from keras_transformer.layers import padding_mask


def start_decoding(
    model: Any, encoder_token_ids: Any, num_beams: int, max_length: Any
) -> dict[str, Any]:
    """Encodes the sources and makes the state of the first decoding step.

    The beams of a sentence are query positions of one attention. Their keys
    and values share one self-attention cache of `max_length * num_beams`
    entries, which is never reordered: `"ancestors"` says which entries are
    the history of each beam. Those of the source are there once a sentence.

    Args:
        model: the `Seq2Seq` whose method this is.
        encoder_token_ids: int tensor `(batch, source_length)`.
        num_beams: int, hypotheses of each sentence.
        max_length: int or int scalar tensor, number of steps there may be.

    Returns:
        A dictionary: `"caches"` (see `DecoderStack.empty_caches`),
        `"source_mask"`, boolean `(batch, source_length)`, and
        `"ancestors"`, boolean `(batch, num_beams, max_length * num_beams)`.
    """
    encoder_token_ids = ops.convert_to_tensor(encoder_token_ids)
    batch, entries = ops.shape(encoder_token_ids)[0], max_length * num_beams
    encoded = model.encode(encoder_token_ids, training=False)
    return {
        "caches": model.decoder.empty_caches(encoded, entries),
        "source_mask": padding_mask(encoder_token_ids, model.pad_token_id),
        "ancestors": ops.zeros((batch, num_beams, entries), "bool"),
    }


def decode_step(
    model: Any, token_ids: Any, index: Any, state: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Computes the logits of the next tokens.

    Args:
        model: the `Seq2Seq` whose method this is.
        token_ids: int tensor `(batch, num_beams)`, the newest tokens.
        index: int32 scalar tensor, their position; the start token's is 0.
        state: from `start_decoding` or the step before.

    Returns:
        Logits `(batch, num_beams, vocabulary_size)` and the new state.
    """
    num_beams = token_ids.shape[1]
    beams = ops.arange(num_beams, dtype="int32")
    entries = ops.arange(ops.shape(state["ancestors"])[2], dtype="int32")
    own = ops.equal(entries[None, :], index * num_beams + beams[:, None])
    ancestors = ops.logical_or(state["ancestors"], own)
    positions = ops.zeros_like(beams) + index
    x = model._embed_target(token_ids, positions, training=False)
    x, caches = model.decoder.step(
        x,
        state["caches"],
        index * num_beams,
        attention_mask=ancestors,
        encoder_padding_mask=state["source_mask"],
        positions=positions,
        cache_positions=ops.floor_divide(entries, num_beams),
    )
    return model._logits(x), {**state, "caches": caches, "ancestors": ancestors}


def reorder_state(model: Any, state: dict[str, Any], parents: Any) -> dict[str, Any]:
    """Lets each beam go on from another one.

    Args:
        model: the `Seq2Seq` whose method this is.
        state: from `decode_step`.
        parents: int tensor `(batch, num_beams)`; beam `i` goes on from what
            was beam `parents[:, i]`.

    Returns:
        The new state.
    """
    ancestors = ops.take_along_axis(state["ancestors"], parents[:, :, None], axis=1)
    return {**state, "ancestors": ancestors}


def search(
    model: Any, encoder_token_ids: Any, search: Search, max_length: int | None = None
) -> SearchResult:
    """Decodes a batch of token ids; can be traced by every backend.

    `generate` compiles this and `export` traces it.

    Args:
        model: the `Seq2Seq` whose method this is.
        encoder_token_ids: int tensor `(batch, source_length)`, padded.
        search: the strategy.
        max_length: int, greatest output length in tokens, the end token
            included. `None` = 50 more than the sentence's own source, as in
            section 6.1 of the paper. `max_target_length` holds as well.

    Returns:
        A `SearchResult` of tensors.
    """
    encoder_token_ids = ops.convert_to_tensor(encoder_token_ids, "int32")
    real = padding_mask(encoder_token_ids, model.pad_token_id)
    lengths = ops.sum(ops.cast(real, "int32"), axis=1)
    longest = ops.shape(encoder_token_ids)[1]
    limits = lengths + 50 if max_length is None else lengths * 0 + max_length
    steps = longest + 50 if max_length is None else max_length
    if model.max_target_length is not None:
        limits = ops.minimum(limits, model.max_target_length)
        steps = _minimum(steps, model.max_target_length)
    return search(
        model.decode_step,
        model.reorder_state,
        model.start_decoding(encoder_token_ids, search.num_beams, steps),
        ops.where(lengths > 0, limits, 1),
        steps,
        start_token_id=model.start_token_id,
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
    )


def _minimum(steps: Any, limit: int) -> Any:
    return min(steps, limit) if isinstance(steps, int) else ops.minimum(steps, limit)
