"""The state of decoding and its steps: methods of `Seq2Seq`, which a search drives."""

from typing import Any

import keras
from keras import ops

from keras_transformer.backend.slice_update import slice_update
from keras_transformer.backend.tied_logits import has_few_rows
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
    ancestors = slice_update(state["ancestors"], itself, index * num_beams, axis=2)
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
    if model.tie_embeddings == "none" or has_few_rows(batch, num_beams):
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
