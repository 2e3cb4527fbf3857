"""Splits long texts into sentences, and joins them after decoding."""

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from sentencex import segment

from keras_transformer.serving.rest import Columns

# The parts of a text: the index of a sentence, or the space around sentences.
Parts: TypeAlias = list[int | str]


# A language token of a multilingual model, such as `>>deu<<` of OPUS-MT's models.
_LANGUAGE_TOKEN = re.compile(r">>[^\s<>]+<<")


class SplitTexts(NamedTuple):
    """Texts that are split into sentences."""

    sentences: list[str]
    # Of each text: the places of its sentences, and the spaces between them.
    parts: list[Parts]


def split(texts: list[str], language: str) -> SplitTexts:
    """Splits texts into sentences.

    A text may begin with a language token such as `>>deu<<`, which sets the target
    language of a multilingual model. It is put before each sentence of the text.
    """
    sentences: list[str] = []
    parts = []
    for text in texts:
        text_parts: Parts = []
        token = _LANGUAGE_TOKEN.match(text)
        prefix = f"{token.group()} " if token else ""
        words = text[token.end() :].lstrip() if token else text
        for piece in _pieces(words, language):
            if piece.isspace():
                text_parts.append(piece)
            else:
                text_parts.append(len(sentences))
                sentences.append(prefix + piece)
        parts.append(text_parts)
    return SplitTexts(sentences, parts)


def join(outputs: Columns, parts: list[Parts]) -> Columns:
    """Joins decoded sentences to texts."""
    texts, truncated = outputs["text"], outputs["truncated"]
    return {
        "truncated": [
            any(truncated[part] for part in own if isinstance(part, int))
            for own in parts
        ],
        "score": [_sum_scores(outputs["score"], own) for own in parts],
        "text": [
            "".join(texts[part] if isinstance(part, int) else part for part in own)
            for own in parts
        ],
    }


def _sum_scores(scores: list[float | None], parts: Parts) -> float | None:
    """Returns the sum of the scores of sentences; `None` if a score is missing."""
    own = [scores[part] for part in parts if isinstance(part, int)]
    found = [score for score in own if score is not None]
    return sum(found) if len(found) == len(own) else None


def _pieces(text: str, language: str) -> Iterator[str]:
    """Yields sentences and the space around them, whose concatenation is the text."""
    for segmented in _segment(language, text):
        inner = segmented.strip()
        before = segmented[: len(segmented) - len(segmented.lstrip())]
        after = segmented[len(before) + len(inner) :]
        yield from (piece for piece in (before, inner, after) if piece)


def _segment(language: str, text: str) -> list[str]:
    """Returns the sentences of a text, or the whole text if sentencex fails."""
    try:
        return list(segment(language, text))
    except BaseException as error:  # a panic of Rust is not an `Exception`
        if type(error).__name__ != "PanicException":
            raise
        return [text]
