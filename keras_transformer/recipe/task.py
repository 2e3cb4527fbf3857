"""Protocols of the parts of a run that depend on the kind of model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import keras

from keras_transformer.dataset import ParallelDataset, TextDataset
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer_runtime.runs.recipe import PlannedRecipe

if TYPE_CHECKING:
    from keras_transformer.recipe.result import TrainingResult
    from keras_transformer.recipe.selection import Selection

RunData: TypeAlias = ParallelDataset | TextDataset


class Datasets(NamedTuple):
    """The data of a run.

    Attributes:
        train: the training data.
        valid: the validation data.
    """

    train: RunData
    valid: RunData


class Evaluator(Protocol):
    """Scores the model of a run on its validation and test texts."""

    @property
    def monitored(self) -> str:
        """The log of an epoch that is the metric on the validation text."""

    @property
    def is_lower_better(self) -> bool:
        """Whether lower values of the metric are better."""

    @property
    def description(self) -> str:
        """What `result` does, as a phrase."""

    @property
    def check_texts(self) -> Sequence[str]:
        """Inputs with which an export is checked."""

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that log further metrics of the validation text."""

    def score(self, model: Any) -> float:
        """Returns the metric on the validation text."""

    def result(self, model: Any, selection: "Selection") -> "TrainingResult":
        """Scores the selected weights on the test text."""


class Task(Protocol):
    """Texts, tokenizers and data of a run, and its choices from the text."""

    def read_texts(self) -> None:
        """Reads the texts, after parts of the training text are held out."""

    def make_tokenizers(self) -> Tokenizers:
        """Trains the tokenizers of a new run."""

    def choose_options(self, tokenizers: Tokenizers) -> None:
        """Chooses the options of a new run that depend on the number of tokens."""

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        """Makes the training and the validation data."""

    def context(self, recipe: PlannedRecipe) -> int:
        """Returns the maximum length of a sequence of the model."""

    def new_model(self, tokenizers: Tokenizers, recipe: PlannedRecipe) -> Any:
        """Returns a new model, not compiled."""

    def evaluator(self, model: Any, recipe: PlannedRecipe) -> Evaluator:
        """Checks the texts with the model, and returns the `Evaluator`."""
