"""Hypotheses that go their ways alone, one token after the other."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.backend.cross_entropy import log_normalizer
from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.logits_processors import (
    History,
    LogitsProcessor,
    process,
)
from keras_transformer.decoding.search import SearchResult, Sentences, StepModel


class Walk(NamedTuple):
    """The state between two steps."""

    index: Any  # int32 (), position of the next token
    done: Any  # bool (batch, num_beams), what has ended
    token_ids: Any  # int32 (batch, num_beams, max_length)
    tokens: Any  # int32 (batch, num_beams), the newest of each
    lengths: Any  # int32 (batch, num_beams)
    log_probs: Any  # float32 (batch, num_beams)
    state: Any  # the model's


def start(
    model: StepModel, sentences: Sentences, state: Any, max_length: Any, num_beams: int
) -> Walk:
    """Makes the state before the first step; see `Search.start`."""
    shape = (ops.shape(sentences.limits)[0], num_beams)
    return Walk(
        index=ops.convert_to_tensor(0, "int32"),
        done=ops.zeros(shape, "bool"),
        token_ids=ops.full((*shape, max_length), model.pad_token_id, "int32"),
        tokens=ops.full(shape, model.start_token_id, "int32"),
        lengths=ops.zeros(shape, "int32"),
        log_probs=ops.zeros(shape, "float32"),
        state=state,
    )


def advance(
    model: StepModel,
    sentences: Sentences,
    walk: Walk,
    logits_processors: Sequence[LogitsProcessor],
    choose: Callable[[Any, Any], Any],
) -> Walk:
    """Makes one step.

    Args:
        model: the model.
        sentences: what is asked for.
        walk: the state before it.
        logits_processors: rules for the logits.
        choose: `choose(logits, index) -> token_ids`, from float32 `(batch,
            num_beams, vocabulary_size)` to int32 `(batch, num_beams)`; none whose
            logit is `-inf` unless all are.

    Returns:
        The state after it. A hypothesis that can go on with nothing ends with the
        log-probability `-inf`.
    """
    logits, state = model.step(walk.tokens, walk.index, walk.state)
    logits = ops.cast(logits, "float32")
    normalizer = log_normalizer(logits)
    history = History(walk.token_ids, walk.index, normalizer)
    logits = process(logits, history, logits_processors, model, sentences)
    best = choose(logits, walk.index)
    logit = ops.take_along_axis(logits, best[:, :, None], axis=2)
    dead = ops.equal(logit[:, :, 0], -float("inf"))  # as all others are, then
    tokens = ops.where(dead, model.end_token_id, best)
    tokens = ops.where(walk.done, model.pad_token_id, tokens)
    log_probs = ops.where(walk.done, 0.0, (logit - normalizer)[:, :, 0])
    return Walk(
        index=walk.index + 1,
        done=ops.logical_or(walk.done, ops.equal(tokens, model.end_token_id)),
        token_ids=ops.slice_update(
            walk.token_ids, (0, 0, walk.index), tokens[:, :, None]
        ),
        tokens=tokens,
        lengths=ops.where(walk.done, walk.lengths, walk.index + 1),
        log_probs=walk.log_probs + log_probs,
        state=state,
    )


def result(model: StepModel, walk: Walk) -> SearchResult:
    """Returns the hypotheses, best first; see `Search.result`."""
    scores, order = top_k(walk.log_probs, walk.log_probs.shape[1])
    lengths = ops.take_along_axis(walk.lengths, order, axis=1)
    token_ids = ops.take_along_axis(walk.token_ids, order[:, :, None], axis=1)
    found = scores > -float("inf")
    return SearchResult(
        ops.where(found[:, :, None], token_ids, model.pad_token_id),
        ops.where(found, lengths, 0),
        scores,
    )
