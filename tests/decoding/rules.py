"""The rules of the searches, said again in plain Python, one hypothesis at a time."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scripted_step import END, PAD, ScriptedStep

from keras_transformer.decoding import (
    BannedSequences,
    LogitsProcessor,
    NoRepeatNGram,
    RepetitionPenalty,
    SuppressTokens,
)

History = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A processor, and what it does to the log-probability of a next token."""

    processor: LogitsProcessor
    log_prob: Callable[[History, int, float], float]


def banned_if(fits: Callable[[History, int], bool]) -> Callable[..., float]:
    return lambda history, token, log_prob: (
        -np.inf if fits(history, token) else log_prob
    )


def ends_with(sequence: History, ending: History) -> bool:
    return sequence[len(sequence) - len(ending) :] == ending


def repeats(sequence: History, size: int) -> bool:
    ngrams = [sequence[i : i + size] for i in range(len(sequence) - size + 1)]
    return len(ngrams) > 1 and ngrams[-1] in ngrams[:-1]


SEQUENCES = ((3, 4), (2,), (4, 4, 3), (3, END))
RULES = {
    "suppress": Rule(SuppressTokens([3]), banned_if(lambda _, token: token == 3)),
    "ban": Rule(
        BannedSequences(SEQUENCES),
        banned_if(
            lambda history, token: any(
                ends_with((*history, token), s) and len(s) <= len(history) + 1
                for s in SEQUENCES
            )
        ),
    ),
    "no-repeat-1": Rule(
        NoRepeatNGram(1), banned_if(lambda history, token: token in history)
    ),
    "no-repeat-2": Rule(
        NoRepeatNGram(2),
        banned_if(lambda history, token: repeats((*history, token), 2)),
    ),
    "repetition": Rule(
        RepetitionPenalty(1.7),
        lambda history, token, log_prob: log_prob * (1.7 if token in history else 1),
    ),
}


def log_probs(
    step: ScriptedStep,
    row: int,
    rules: list[Rule],
    limit: int,
    min_length: int = 0,
    prefix: History = (),
) -> Callable[[History], np.ndarray]:
    """The log-probabilities of the next tokens under rules, after each history."""

    @functools.cache
    def next_tokens(history: History) -> np.ndarray:
        own = step.log_probs(row, history)
        if len(history) + 1 == limit:
            return only(own, END)
        if len(history) < len(prefix):
            return only(own, prefix[len(history)])
        changed = own.copy()
        for rule in rules:
            for token in range(len(own)):
                changed[token] = rule.log_prob(history, token, changed[token])
        if len(history) + 1 < min_length:
            changed[END] = -np.inf
        changed[PAD] = -np.inf
        return changed

    return next_tokens


def only(own: np.ndarray, token: int) -> np.ndarray:
    return np.where(np.arange(len(own)) == token, own, -np.inf)


def score(next_tokens: Any, token_ids: list[int]) -> float:
    return sum(
        next_tokens(tuple(token_ids[:index]))[token]
        for index, token in enumerate(token_ids)
    )
