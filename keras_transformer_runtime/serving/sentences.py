"""Splits long texts into sentences, and joins them after decoding."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from sentencex import segment

from keras_transformer_runtime.engines.engine import Hypothesis

# The parts of a text: the index of a sentence, or the space around sentences.
Parts: TypeAlias = list[int | str]


# A language token of a multilingual model, such as `>>deu<<` of OPUS-MT's models.
_LANGUAGE_TOKEN = re.compile(r">>[^\s<>]+<<")


class SplitTexts(NamedTuple):
    """Texts that are split into sentences."""

    sentences: list[str]
    # Of each text: the places of its sentences, and the spaces between them.
    parts: list[Parts]


def split(texts: Sequence[str], language: str) -> SplitTexts:
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


def join(found: list[list[Hypothesis]], parts: list[Parts]) -> list[list[Hypothesis]]:
    """Joins the outputs of sentences to those of texts.

    Args:
        found: the hypotheses of each sentence.
        parts: the parts of each text.

    Returns:
        The hypotheses of each text. A text of several sentences has one: the best ones
        of its sentences, with the sum of their scores.
    """
    outputs = []
    for own in parts:
        places = [part for part in own if isinstance(part, int)]
        best = {place: found[place][0] for place in places}
        if len(own) == len(places) == 1:
            outputs.append(found[places[0]])
            continue
        text = "".join(
            best[part].text if isinstance(part, int) else part for part in own
        )
        score = sum(each.score for each in best.values())
        truncated = any(each.truncated for each in best.values())
        length = sum(each.length for each in best.values())
        outputs.append([Hypothesis(text, score, truncated, length)])
    return outputs


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
