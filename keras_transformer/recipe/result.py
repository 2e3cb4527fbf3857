"""The result of a run: the model, the search selected for it, and its scores."""

import dataclasses
import pathlib
import warnings
from typing import NamedTuple

from keras_transformer import evaluation
from keras_transformer.decoding import BeamSearch
from keras_transformer.files import read_json, write_json
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.folder import check_length_penalty
from keras_transformer.recipe.recipe import Recipe

LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4)


class ParallelText(NamedTuple):
    """A text and its translation.

    Attributes:
        sources: list of str, the sentences.
        references: list of str, the translation of each sentence.
    """

    sources: list[str]
    references: list[str]


@dataclasses.dataclass(frozen=True)
class Figures:
    """The scores of a trained model.

    Attributes:
        sentences: int, number of sentences of the test text, or of the validation text
            if there is no test text.
        length_penalty: float, length penalty of the search.
        bleu: float, BLEU of that text, from 0 to 100.
        bleu_signature: str, sacreBLEU's signature of `bleu`.
        chrf: float, chrF of that text, from 0 to 100.
        chrf_signature: str, sacreBLEU's signature of `chrf`.
        valid_bleu: dictionary of floats, BLEU of the validation text by length penalty.
    """

    sentences: int
    length_penalty: float
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    valid_bleu: dict[str, float]

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
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must have the figures of a run; it is damaged: {error}"
            ) from error
        return figures

    def write(self, path: pathlib.Path) -> None:
        """Writes the figures to a JSON file.

        Args:
            path: the file.
        """
        write_json(path, dataclasses.asdict(self))

    def __getitem__(self, name: str) -> object:
        """Returns a figure by name. Deprecated: figures are attributes."""
        warnings.warn(
            f'`figures["{name}"]` is deprecated and will be removed in the next '
            f"version. Use `figures.{name}` instead.",
            FutureWarning,
            stacklevel=2,
        )
        if name not in vars(self):
            raise KeyError(name)
        value: object = vars(self)[name]
        return value


class TrainingResult(NamedTuple):
    """The result of a run.

    Attributes:
        model: the model, with the mean of the weights of the last epochs.
        search: the `BeamSearch` whose length penalty gives the highest BLEU of the
            validation text.
        figures: the `Figures` of the model with this search.
    """

    model: GenerativeModel
    search: BeamSearch
    figures: Figures


def evaluate_model(
    model: GenerativeModel,
    valid_text: ParallelText,
    test_text: ParallelText,
    recipe: Recipe,
) -> TrainingResult:
    """Selects a length penalty with the validation text, and scores the test text.

    Args:
        model: the trained model.
        valid_text: the validation text.
        test_text: the test text.
        recipe: the options.

    Returns:
        The model with the selected search and its figures.
    """
    valid_bleu = {
        penalty: evaluation.bleu(
            model.generate(valid_text.sources, BeamSearch(recipe.num_beams, penalty)),
            valid_text.references,
            lowercase=recipe.lowercase,
            tokenize=recipe.bleu_tokenize,
        ).score
        for penalty in LENGTH_PENALTIES
    }
    length_penalty = max(valid_bleu, key=lambda penalty: valid_bleu[penalty])
    search = BeamSearch(recipe.num_beams, length_penalty)
    scores = evaluation.translation_scores(
        model.generate(test_text.sources, search),
        test_text.references,
        lowercase=recipe.lowercase,
        tokenize=recipe.bleu_tokenize,
    )
    figures = Figures(
        sentences=len(test_text.sources),
        length_penalty=length_penalty,
        bleu=scores["bleu"].score,
        bleu_signature=scores["bleu"].signature,
        chrf=scores["chrf"].score,
        chrf_signature=scores["chrf"].signature,
        valid_bleu={str(penalty): score for penalty, score in valid_bleu.items()},
    )
    return TrainingResult(model, search, figures)
