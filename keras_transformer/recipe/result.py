"""The result of a run: the model, the search selected for it, and its scores."""

import dataclasses
import math
import pathlib
from typing import NamedTuple, TypeAlias

from keras_transformer import evaluation
from keras_transformer.decoding import BeamSearch, Sampling, Search
from keras_transformer.decoding.generation_options import search_from_options
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.types import Data
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.files import read_json, write_json
from keras_transformer_runtime.runs.folder import (
    FIGURES,
    began_recipe,
    check_length_penalty,
    damaged_figures,
)
from keras_transformer_runtime.text_scores import TextScores

# The search of a language model, and that of answers.
SAMPLING = Sampling(top_p=0.9)
ANSWERING = BeamSearch()


@dataclasses.dataclass(frozen=True)
class Figures:
    """The scores of a trained model.

    Attributes:
        sentences: int, number of sentences of the test text, or of the validation text
            if there is no test text.
        length_penalty: float, length penalty of the search of Keras and the SavedModel.
        bleu: float, BLEU of that text, from 0 to 100.
        bleu_signature: str, sacreBLEU's signature of `bleu`.
        chrf: float, chrF of that text, from 0 to 100.
        chrf_signature: str, sacreBLEU's signature of `chrf`.
        exact_match: float, percentage of outputs that equal their reference.
        token_error_rate: float, edits per 100 words of the references.
        character_error_rate: float, edits per 100 characters of the references.
        metric: str, the metric that selected the weights and the length penalty.
        valid_scores: dictionary of floats, the metric on the validation text by length
            penalty, each of which chooses among the hypotheses of one search; BLEU if
            `metric` is `"loss"`. Empty if nothing was selected.
        weights: str, the selected weights, such as `"mean of epochs 31 to 40"`.
        candidates: dictionary of floats, the metric on the validation text by the name
            of the weights. Empty if there was one candidate.
        valid_engine: str, software that translated the validation and the test text,
            with the length penalty selected for it.
        start_from: str, the trained model that the run started from; `None` without.
        trained_parameters: int, number of parameters that were trained from there.
    """

    sentences: int
    length_penalty: float
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    valid_scores: dict[str, float]
    exact_match: float
    token_error_rate: float
    character_error_rate: float
    metric: str
    weights: str
    candidates: dict[str, float]
    valid_engine: str = "keras"
    start_from: str | None = None
    trained_parameters: int | None = None

    @classmethod
    def read(cls, path: pathlib.Path) -> "Figures":
        """Reads the figures from a JSON file.

        Args:
            path: the file.

        Returns:
            The `Figures`.

        Raises:
            ValueError: if the file does not contain figures.
        """
        content = read_json(path)
        try:
            figures = cls(**content)
            check_length_penalty(figures.length_penalty)
        except (TypeError, ValueError, AttributeError) as error:
            raise damaged_figures(path, error) from error
        return figures

    @property
    def size(self) -> str:
        """The size of the text, as a phrase."""
        return f"{self.sentences:,} sentences"

    def lines(self) -> list[str]:
        """Returns the scores as lines of at most 80 columns."""
        names = {name: getattr(self, name) for name in evaluation.METRICS}
        lines = [
            f"{name.replace('_', ' '):21}{value:8.2f}"
            for name, value in names.items()
            if not math.isnan(value)
        ]
        return [*lines, f"{'sacreBLEU':11}{self.bleu_signature}"]

    def write(self, path: pathlib.Path) -> None:
        """Writes the figures to a JSON file.

        Args:
            path: the file.
        """
        write_json(path, dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class LanguageModelFigures:
    """The scores of a trained language model.

    Attributes:
        scores: the `TextScores` of the test text, or of the validation text if there is
            no test text.
        metric: str, the metric that selected the weights, `"loss"`.
        weights: str, the selected weights, such as `"mean of epochs 31 to 40"`.
        candidates: dictionary of floats, the loss of a token of the validation text by
            the name of the weights.
        start_from: str, the trained model that the run started from; `None` without.
        trained_parameters: int, number of parameters that were trained from there.
    """

    scores: TextScores
    metric: str
    weights: str
    candidates: dict[str, float]
    start_from: str | None = None
    trained_parameters: int | None = None

    @classmethod
    def read(cls, path: pathlib.Path) -> "LanguageModelFigures":
        """Reads the figures from a JSON file.

        Args:
            path: the file.

        Returns:
            The `LanguageModelFigures`.

        Raises:
            ValueError: if the file does not contain figures.
        """
        content = read_json(path)
        try:
            figures = cls(**{**content, "scores": TextScores(**content["scores"])})
            figures.lines()
        except (TypeError, ValueError, KeyError) as error:
            raise damaged_figures(path, error) from error
        return figures

    @property
    def size(self) -> str:
        """The size of the text, as a phrase."""
        return f"{self.scores.characters:,} characters"

    def lines(self) -> list[str]:
        """Returns the scores as lines of at most 80 columns."""
        return self.scores.lines()

    def write(self, path: pathlib.Path) -> None:
        """Writes the figures to a JSON file.

        Args:
            path: the file.
        """
        write_json(path, dataclasses.asdict(self))


AnyFigures: TypeAlias = Figures | LanguageModelFigures


def read_figures(path: pathlib.Path, model: str) -> AnyFigures:
    """Reads the file `figures.json` of a run with an option `model`."""
    return (LanguageModelFigures if model == "causal" else Figures).read(path)


class TrainingResult(NamedTuple):
    """The result of a run.

    Attributes:
        model: the model, with the selected weights.
        search: the `BeamSearch` with the length penalty that is best on the validation
            text; for a language model `Sampling(top_p=0.9)`, or `BeamSearch()` if it
            was trained on prompts and answers.
        figures: the `Figures` of the model, whose `valid_engine` has computed them, or
            the `LanguageModelFigures`.
    """

    model: GenerativeModel
    search: Search
    figures: Data


def read_result(output: pathlib.Path) -> TrainingResult:
    """Reads the result of a complete run from its folder."""
    recipe = began_recipe(output)
    figures = read_figures(output / FIGURES, recipe.model)
    model = load_trained_model(output / "model.keras")
    search: Search = SAMPLING if recipe.has_running_text else ANSWERING
    if isinstance(figures, Figures):
        search = search_from_options(
            GenerationOptions(
                num_beams=recipe.num_beams, length_penalty=figures.length_penalty
            )
        )
    return TrainingResult(model, search, figures)
