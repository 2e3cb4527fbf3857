"""Base classes of the parts of a run that depend on the kind of model."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import keras

from keras_transformer.dataset import ParallelDataset, TextDataset
from keras_transformer.models import CausalLM, GenerativeModel, Seq2Seq
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.result import TrainingResult
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.runs.recipe import PlannedRecipe


class Datasets(NamedTuple):
    """The training and the validation data of a run."""

    train: ParallelDataset | TextDataset
    valid: ParallelDataset | TextDataset


class ChosenSearch(NamedTuple):
    """The options of the search of an engine, chosen on the validation text."""

    options: GenerationOptions
    scores: dict[str, float]  # of the validation text, with these options
    description: str  # as a phrase; "" without a choice


class Evaluator(abc.ABC):
    """Scores the model of a run on its validation and test texts."""

    monitored: str  # the log of an epoch that is the metric on the validation text
    is_lower_better: bool  # of the metric
    description: str  # what `result` does, as a phrase
    check_texts: Sequence[str]  # inputs with which an export is checked

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that log further metrics of the validation text."""
        return []

    @abc.abstractmethod
    def score(self, model: GenerativeModel) -> float:
        """Returns the metric on the validation text."""

    @abc.abstractmethod
    def result(self, model: GenerativeModel, selection: Selection) -> TrainingResult:
        """Scores the selected weights on the test text."""

    def search_of(self, engine: Engine) -> ChosenSearch:
        """Chooses the options of an exported model on the validation text."""
        return ChosenSearch(engine.options, {}, "")


class Task(abc.ABC):
    """Texts, tokenizers and data of a run, and its choices from the text.

    The plan gets the choices. The methods are called in their order.
    """

    model_class: type[Seq2Seq] | type[CausalLM]

    def __init__(self, plan: Plan, is_new: bool) -> None:
        self._plan = plan
        self._is_new = is_new  # not resumed

    @abc.abstractmethod
    def read_texts(self) -> None:
        """Reads the texts, after parts of the training text are held out."""

    @abc.abstractmethod
    def make_tokenizers(self) -> Tokenizers:
        """Trains the tokenizers of a new run."""

    @abc.abstractmethod
    def choose_options(self, tokenizers: Tokenizers) -> None:
        """Chooses the options of a new run that depend on the number of tokens."""

    @abc.abstractmethod
    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        """Makes the training and the validation data."""

    @abc.abstractmethod
    def describe_data(self) -> tuple[str, str]:
        """Returns the sizes of the training and of the validation data, as phrases."""

    @abc.abstractmethod
    def context(self, recipe: PlannedRecipe) -> int:
        """Returns the maximum length of a sequence of the model."""

    @abc.abstractmethod
    def new_model(
        self, tokenizers: Tokenizers, recipe: PlannedRecipe
    ) -> GenerativeModel:
        """Returns a new model, not compiled."""

    def choose_with_model(self, model: GenerativeModel) -> None:
        """Chooses the options of a run that depend on the model, if there are some."""
        return

    @abc.abstractmethod
    def evaluator(self, model: GenerativeModel, recipe: PlannedRecipe) -> Evaluator:
        """Checks the texts with the model, and returns the `Evaluator`."""
