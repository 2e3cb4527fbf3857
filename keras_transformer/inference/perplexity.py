"""Perplexities of running text."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.inference.text_windows import LanguageModel, score_texts
from keras_transformer_runtime.engines.generation_options import REPLACEMENT
from keras_transformer_runtime.text_scores import TextScores

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


def add_scores(result: ScoreResult, texts: Sequence[str]) -> TextScores:
    """Adds up the scores of texts."""
    return TextScores(
        nats=float(-result.scores.sum(dtype="float64")),
        texts=len(texts),
        tokens=int(result.lengths.sum()),
        characters=sum(map(len, texts)),
        bytes=sum(len(text.encode()) for text in texts),
    )


def score_running_text(
    model: LanguageModel,
    texts: Sequence[str],
    context: int | None = None,
    stride: int | None = None,
    batch_size: int = 64,
) -> TextScores:
    """Scores texts of any length; see `CausalLM.score_texts`."""
    result = score_texts(model, texts, context, stride, batch_size)
    scores = add_scores(result, texts)
    if model.add_start_token or model.target_tokenizer is None:
        return scores
    first = _first_tokens(model.target_tokenizer, texts)
    return dataclasses.replace(
        scores,
        characters=scores.characters - sum(len(_characters(text)) for text in first),
        bytes=scores.bytes - sum(map(len, first)),
    )


def _first_tokens(tokenizer: "Tokenizer", texts: Sequence[str]) -> list[bytes]:
    """Returns the bytes of the first token of each text, which is not scored."""
    rows = tokenizer.tokenize(texts)[:, :1]
    found: list[bytes] = tokenizer.detokenize(rows).numpy().tolist()
    if not any(text.endswith(REPLACEMENT.encode()) for text in found):
        return found
    # A token can be one byte of a character.
    of_tokens = tokenizer.token_texts()
    return [
        of_tokens[row[0]] if text.endswith(REPLACEMENT.encode()) else text
        for row, text in zip(rows.to_list(), found, strict=True)
    ]


def _characters(text: bytes) -> str:
    """Returns the complete characters of the first bytes of a text."""
    return text.decode("utf-8", "ignore")
