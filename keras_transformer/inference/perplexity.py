"""Perplexities of texts: of a token, of a character and of a byte."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.inference.streaming import REPLACEMENT
from keras_transformer.inference.text_windows import LanguageModel, score_texts

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextScores:
    """The negative log-probability of texts, and their sizes."""

    nats: float  # negative log-probability of all texts
    texts: int
    tokens: int  # number of scored tokens, end tokens included
    characters: int  # of the scored tokens
    bytes: int  # of the scored tokens in UTF-8

    @classmethod
    def of(cls, result: ScoreResult, texts: Sequence[str]) -> "TextScores":
        """Adds up the scores of texts."""
        return cls(
            nats=float(-result.scores.sum(dtype="float64")),
            texts=len(texts),
            tokens=int(result.lengths.sum()),
            characters=sum(map(len, texts)),
            bytes=sum(len(text.encode()) for text in texts),
        )

    @property
    def loss(self) -> float:
        """Mean negative log-probability of a token, in nats."""
        return self.nats / max(self.tokens, 1)

    def lines(self) -> list[str]:
        """Returns the perplexities as lines of at most 80 columns."""
        counts = {
            "token": self.tokens,
            "character": self.characters,
            "byte": self.bytes,
        }
        lines = [
            f"{f'perplexity per {unit}':25}{_exp(self.nats / max(count, 1)):8.4g}"
            for unit, count in counts.items()
        ]
        nats = self.nats / max(self.characters, 1)
        return [*lines, f"{'nats per character':25}{nats:8.4f}"]


def _exp(value: float) -> float:
    """Returns `exp(value)`; an untrained model may have infinity."""
    return math.exp(value) if value < 700 else math.inf


def score_running_text(
    model: LanguageModel,
    texts: Sequence[str],
    context: int | None = None,
    stride: int | None = None,
    batch_size: int = 64,
) -> TextScores:
    """Scores texts of any length; see `CausalLM.score_texts`."""
    result = score_texts(model, texts, context, stride, batch_size)
    scores = TextScores.of(result, texts)
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
