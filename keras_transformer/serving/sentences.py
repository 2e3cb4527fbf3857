"""Long texts, sentence by sentence: split, and joined again after decoding."""

from typing import Any

from sentencex import segment

from keras_transformer.serving.rest import Columns


def split(texts: list[str], language: str) -> tuple[list[str], list[list[int | str]]]:
    """Splits texts into sentences.

    Args:
        texts: of any length.
        language: ISO 639-1 code, whose rules say where a sentence ends.

    Returns:
        All sentences, without the space around them; and for each text its parts in
        order: an int for a sentence, its place in that list, or a str for the space
        before, between and behind sentences.

    Example:

    ```python
    print(split(["It rains.  Dr. Jones sleeps.", ""], "en"))
    # (['It rains.', 'Dr. Jones sleeps.'], [[0, '  ', 1], []])
    ```
    """
    sentences: list[str] = []
    parts = []
    for text in texts:
        found: list[int | str] = []
        for piece in _pieces(text, language):
            if piece.isspace():
                found.append(piece)
            else:
                found.append(len(sentences))
                sentences.append(piece)
        parts.append(found)
    return sentences, parts


def join(outputs: Columns, parts: list[list[int | str]]) -> Columns:
    """Puts decoded sentences together again.

    Args:
        outputs: `text` and `score` of each sentence.
        parts: what `split` returned.

    Returns:
        `text` and `score` of each text; a score is the sum of the sentences'.
    """
    texts = outputs["text"]
    return {
        "score": [_total(outputs["score"], found) for found in parts],
        "text": [
            "".join(texts[part] if isinstance(part, int) else part for part in found)
            for found in parts
        ],
    }


def _total(scores: list[Any], parts: list[int | str]) -> Any:
    """The sum of the sentences' scores; `None` if one has none."""
    own = [scores[part] for part in parts if isinstance(part, int)]
    return None if None in own else sum(own)


def _pieces(text: str, language: str) -> Any:
    """Sentences and the space between them, in turn; together they are the text."""
    for segmented in _segment(language, text):
        inner = segmented.strip()
        before = segmented[: len(segmented) - len(segmented.lstrip())]
        behind = segmented[len(before) + len(inner) :]
        yield from (piece for piece in (before, inner, behind) if piece)


def _segment(language: str, text: str) -> list[str]:
    """The sentences of a text; all of it where sentencex fails, written in Rust."""
    try:
        return list(segment(language, text))
    except BaseException as error:  # a panic of Rust is no `Exception`
        if type(error).__name__ != "PanicException":
            raise
        return [text]
