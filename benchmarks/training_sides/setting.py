"""Settings of all sides."""

import dataclasses
from collections.abc import Callable

from training_sides.batches import VOCABULARY_SIZE, Batch

# Trains on the batches and calls the function after each step.
Train = Callable[[list[Batch], Callable[[], None]], None]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The size of the model and the options of its training."""

    size: str
    dropout: float
    tokens_per_batch: int
    dtype: str = "float32"  # dtype policy of Keras
    attention_dropout: float | None = None  # of ours; `None` = `dropout`
    label_smoothing: float = 0.1
    vocabulary_size: int = VOCABULARY_SIZE

    @property
    def dimensions(self) -> dict[str, int]:
        from keras_transformer.models import PRESETS

        return PRESETS[f"transformer_{self.size}"]
