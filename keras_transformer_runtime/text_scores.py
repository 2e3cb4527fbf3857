"""Perplexities of texts: of a token, of a character and of a byte."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class TextScores:
    """The negative log-probability of texts, and their sizes."""

    nats: float  # negative log-probability of all texts
    texts: int
    tokens: int  # number of scored tokens, end tokens included
    characters: int  # of the scored tokens
    bytes: int  # of the scored tokens in UTF-8

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
        means = {unit: self.nats / max(count, 1) for unit, count in counts.items()}
        lines = [
            f"{f'perplexity per {unit}':25}{exp_or_infinity(mean):8.4g}"
            for unit, mean in means.items()
        ]
        nats = self.nats / max(self.characters, 1)
        return [*lines, f"{'nats per character':25}{nats:8.4f}"]


def exp_or_infinity(value: float) -> float:
    """Returns `exp(value)`; an untrained model may have infinity."""
    return math.exp(value) if value < 700 else math.inf
