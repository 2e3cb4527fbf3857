"""What the sides have in common."""

import dataclasses
from collections.abc import Callable

from training_sides.batches import VOCABULARY_SIZE, Batch

# Trains on the batches and calls the function when a step is done.
Train = Callable[[list[Batch], Callable[[], None]], None]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The size of the model, and how it is trained."""

    size: str
    dropout: float
    tokens_per_batch: int
    dtype: str = "float32"  # Keras's policy.
    label_smoothing: float = 0.1
    vocabulary_size: int = VOCABULARY_SIZE

    @property
    def dimensions(self) -> dict[str, int]:
        from keras_transformer.models import PRESETS

        return PRESETS[f"transformer_{self.size}"]
