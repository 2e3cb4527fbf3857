"""Parallel text and lexical tables as token ids, from which shortlists are made."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.inference.token_ids import Rows
from keras_transformer.inference.translation_table import TranslationTable
from keras_transformer.text import Tokenizer, read_lines

LONGEST_SENTENCE = 100  # tokens


class TokenPairs(NamedTuple):
    """Sentences and their translations as lists of token ids."""

    sources: Rows
    targets: Rows


def read_token_pairs(
    sources: Sequence[str | os.PathLike],
    targets: Sequence[str | os.PathLike],
    tokenizers: tuple[Tokenizer, Tokenizer],
    limit: int,
) -> TokenPairs:
    """Reads parallel text, without sentences of no token or of more than 100.

    Args:
        sources: paths of the source text.
        targets: paths of the translations.
        tokenizers: the tokenizers of the source and the target.
        limit: int, maximum number of pairs of lines, which have equal distances.

    Returns:
        `TokenPairs`.

    Raises:
        ValueError: if the numbers of lines differ, or no pair is left.
    """
    counts = [sum(1 for line in _lines(paths)) for paths in (sources, targets)]
    if counts[0] != counts[1]:
        raise ValueError(
            "`sources` and `targets` must have equal numbers of lines; received "
            f"{counts[0]} and {counts[1]} lines."
        )
    step = -(-counts[0] // limit)
    lines = zip(_lines(sources), _lines(targets), strict=True)
    chosen = [pair for number, pair in enumerate(lines) if number % step == 0]
    sides = zip(*chosen, strict=True)
    rows = [
        tokenizer.tokenize([*texts]).to_list()
        for tokenizer, texts in zip(tokenizers, sides, strict=True)
    ]
    kept = [
        pair
        for pair in zip(*rows, strict=True)
        if min(map(len, pair)) > 0 and max(map(len, pair)) <= LONGEST_SENTENCE
    ]
    if not kept:
        raise ValueError(
            "`sources` and `targets` must have a pair of lines of 1 to "
            f"{LONGEST_SENTENCE} tokens; received none in {len(chosen)} pairs."
        )
    return TokenPairs([row for row, _ in kept], [row for _, row in kept])


def read_lexical_table(
    path: str | os.PathLike, tokenizers: tuple[Tokenizer, Tokenizer]
) -> TranslationTable:
    """Reads a lexical table; see `Shortlist.from_lexical_table`.

    Args:
        path: path of the file.
        tokenizers: the tokenizers of the source and the target.

    Returns:
        A `TranslationTable`.

    Raises:
        ValueError: if a line has another form, or the vocabularies have none of the
            tokens.
    """
    ids = [
        {token: number for number, token in enumerate(tokenizer.get_vocabulary())}
        for tokenizer in tokenizers
    ]
    entries = [
        (ids[0][source], ids[1][target], probability)
        for target, source, probability in _lexical_lines(path)
        if source in ids[0] and target in ids[1]
    ]
    if not entries:
        raise ValueError(
            f"The lexical table `{path}` must have tokens of the vocabularies of the "
            "model; it has none. Make it from text that the tokenizers of the model "
            "have split."
        )
    sources, targets, probabilities = zip(*entries, strict=True)
    return TranslationTable(
        np.array(sources, "int64"),
        np.array(targets, "int64"),
        np.array(probabilities, "float64"),
    )


def _lines(paths: Sequence[str | os.PathLike]) -> Iterator[str]:
    for path in paths:
        yield from read_lines(path)


def _lexical_lines(path: str | os.PathLike) -> Iterator[tuple[str, str, float]]:
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split()
        try:
            target, source, probability = parts
            yield target, source, float(probability)
        except ValueError:
            raise ValueError(
                "A line of a lexical table must have a target token, a source token "
                f"and a probability; line {number} of `{path}` is {line!r:.200}."
            ) from None
