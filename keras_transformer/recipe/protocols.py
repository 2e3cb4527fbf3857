"""The protocol of a model that a run trains."""

import os
from collections.abc import Sequence
from typing import Any, Protocol, Self

from keras_transformer.decoding import Search
from keras_transformer.inference.protocols import SequenceModel
from keras_transformer.types import Config


class TrainableModel(SequenceModel, Protocol):
    """A `SequenceModel` that a run trains, evaluates, saves and exports.

    `Seq2Seq` follows this protocol, as does every `keras.Model` that inherits from
    `GenerativeModel` and `TokenTrainer`.

    Attributes:
        dtype_policy: the `keras.DTypePolicy` of the model.
    """

    dtype_policy: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Sets optimizer, loss and metrics; see `TokenTrainer.compile`."""
        ...

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Trains the model; see `keras.Model.fit`."""
        ...

    def summary(self) -> None:
        """Prints the layers of the model."""
        ...

    def generate(self, inputs: Sequence[str], search: Search | None = None) -> Any:
        """Decodes texts; see `GenerativeModel.generate`."""
        ...

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Returns a model with a configuration from `get_config`."""
        ...

    def get_weights(self) -> list[Any]:
        """Returns the weights as NumPy arrays."""
        ...

    def set_weights(self, weights: list[Any]) -> None:
        """Sets the weights."""
        ...

    def save(self, filepath: str | os.PathLike[str]) -> None:
        """Writes a `.keras` file."""
        ...

    def export(
        self,
        filepath: str | os.PathLike[str],
        search: Search | None = None,
        **options: Any,
    ) -> None:
        """Writes a SavedModel; see `GenerativeModel.export`."""
        ...
