"""The rows of the table."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from ablation_models.convolution import convolution
from ablation_models.lstm import lstm
from ablation_models.tokens import MAX_LENGTH
from ablation_models.transformer import transformer, transformer_without_residual
from keras_transformer import LearnedPositionalEncoding, PositionScheme, RotaryEmbedding


@dataclasses.dataclass(frozen=True)
class Row:
    """A model and its training. The defaults are those of the first row."""

    name: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    build: Callable[..., keras.Model] = transformer
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    rate: float = 1.0  # factor of the learning rate
    clipnorm: float | None = None
    seed: int = 0  # added to the seed of the recipe

    def slower(self) -> "Row":
        return dataclasses.replace(self, name=f"{self.name}-slow", rate=0.25)


def learned_positions() -> PositionScheme:
    return LearnedPositionalEncoding(MAX_LENGTH)


BASE = Row("base")
NO_RESIDUAL = Row("no-residual", build=transformer_without_residual)
NO_NORMALIZATION = Row(
    "no-normalization", {"residual_options": {"normalization": None}}
)
# Gradient clipping as in the papers.
LSTM = Row("lstm", build=lstm, clipnorm=1.0)
CONVOLUTION = Row("convolution", build=convolution, clipnorm=1.0)

ABLATIONS = [
    BASE,
    Row("another-seed", seed=1),
    Row("heads-1", {"num_heads": 1}),
    Row("heads-8", {"num_heads": 8}),
    Row("heads-16", {"num_heads": 16}),
    Row("layers-1", {"num_layers": 1}),
    Row("layers-2", {"num_layers": 2}),
    Row("dropout-0", {"dropout": 0.0}),
    Row("dropout-0.1", {"dropout": 0.1}),
    Row("attention-dropout-0.3", {"attention_dropout": 0.3}),
    Row("no-label-smoothing", label_smoothing=0.0),
    Row("r-drop", r_drop=5.0),
    Row("learned-positions", {"positions": learned_positions}),
    Row("rotary-positions", {"positions": RotaryEmbedding}),
    Row("no-positions", {"positions": PositionScheme}),
    NO_RESIDUAL,
    NO_RESIDUAL.slower(),
    NO_NORMALIZATION,
    NO_NORMALIZATION.slower(),
]
ARCHITECTURES = {
    "Transformer": [BASE, BASE.slower()],
    "LSTM": [LSTM, LSTM.slower()],
    "convolution": [CONVOLUTION, CONVOLUTION.slower()],
}
ROWS = {row.name: row for rows in [ABLATIONS, *ARCHITECTURES.values()] for row in rows}
