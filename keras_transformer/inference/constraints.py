"""Phrases that must occur in the outputs, as token ids."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from keras_transformer.inference.sequence_model import SequenceModel
from keras_transformer.inference.token_ids import (
    Rows,
    as_entries,
    check_rows,
    is_text,
    power_of_two,
    token_rows,
)

# The phrases of each input: texts, or lists of token ids.
Constraints: TypeAlias = Sequence[Sequence[object] | None]


def phrase_rows(
    model: SequenceModel, constraints: Constraints, room: Sequence[int]
) -> list[Rows]:
    """Converts the phrases of inputs to lists of token ids, and checks them."""
    entries = [*constraints]
    if len(entries) != len(room):
        raise ValueError(
            "`constraints` must have one list of phrases for each input; received "
            f"{len(entries)} lists and {len(room)} inputs."
        )
    phrases: list[Sequence[object]] = []
    for number, entry in enumerate(entries):
        if is_text(entry) or np.isscalar(entry):
            raise ValueError(
                "`constraints` must have a list of phrases for each input; received "
                f"{entry!r} in row {number}. Write `[{entry!r}]`."
            )
        phrases.append([] if entry is None else as_entries(entry, "constraints"))
    flat = [phrase for entry in phrases for phrase in entry]
    if not flat:
        return [[] for _ in entries]
    pad, tokenizer = model.pad_token_id, model.target_tokenizer
    rows = iter(token_rows(flat, "constraints", tokenizer, pad, add_end=False))
    found = [[next(rows) for _ in entry] for entry in phrases]
    for number, (ids_of_row, entry) in enumerate(zip(found, phrases, strict=True)):
        for ids, phrase in zip(ids_of_row, entry, strict=True):
            _check_phrase(model, ids, phrase, number)
        _check_room(ids_of_row, entry, room[number], number)
    return found


def pad_phrases(phrases: list[Rows], batch_size: int, pad_token_id: int) -> np.ndarray:
    """Pads phrases to a batch."""
    count = power_of_two(max(map(len, phrases)))
    length = power_of_two(max(len(ids) for row in phrases for ids in row), 4)
    padded = np.full((batch_size, count, length), pad_token_id, "int32")
    for row, entry in zip(padded, phrases, strict=False):
        for phrase, ids in zip(row, entry, strict=False):
            phrase[: len(ids)] = ids
    return padded


def _check_phrase(
    model: SequenceModel, ids: list[int], phrase: object, number: int
) -> None:
    size = model.target_vocabulary_size
    check_rows([ids], "constraints", "target", size, None, "")
    tokenizer = model.target_tokenizer
    problem = None
    if not ids:
        problem = "at least one token each"
    elif model.end_token_id in ids:
        problem = "no end token, which only the search appends"
    elif is_text(phrase) and tokenizer and tokenizer.unknown_token_id in ids:
        problem = "only characters and words of the target vocabulary"
    if problem is not None:
        raise ValueError(
            f"`constraints` must have phrases with {problem}; received {phrase!r} in "
            f"row {number}."
        )


def _check_room(phrases: Rows, entry: Sequence[object], room: int, number: int) -> None:
    tokens = sum(map(len, phrases))
    if tokens > room:
        raise ValueError(
            "`constraints` must be shorter than the maximum output length; received "
            f"{len(phrases)} phrases of {tokens} tokens in row {number}, whose output "
            f"has room for {room}: {entry!r:.200}. Pass a larger `max_length` or fewer "
            "phrases."
        )
