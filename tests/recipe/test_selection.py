"""The weights that a run selects."""

import numpy as np
import pytest

from keras_transformer.recipe import selection
from keras_transformer.recipe.held_out import ParallelText
from keras_transformer.recipe.selection import Candidate, select_weights
from keras_transformer.recipe.translation import TranslationEvaluator
from keras_transformer_runtime.runs.recipe import PlannedRecipe

pytestmark = pytest.mark.once("torch")

TEXT = ParallelText(["a b", "c d", "e f", "g h"], ["A B", "C D", "E F", "G H"])
RIGHT = {"mean": 2, "last": 3, "best": 1}  # outputs that are right with each weights
VALUES = {
    **{"train": ["a.tsv"], "valid": ["b.tsv"], "output": "runs/a", "dropout": 0.3},
    **{"epochs": 3, "tokens_per_batch": 1024, "learning_rate": 1e-3, "average": 2},
    **{"warmup_steps": 5, "cooldown": 0, "save_every": 5},
}


class Model:
    """Translates as many texts correctly as its weights say."""

    def __init__(self, right=RIGHT):
        self.weights = ""
        self.right = right
        self.searches = []

    def generate(self, texts, search):
        self.searches.append(repr(search))
        right = self.right[self.weights]
        return [text.upper() if i < right else "x" for i, text in enumerate(texts)]

    def score(self, sources, targets):
        class Scores:
            scores = -np.array([1.0, 2.0]) * (4 - self.right[self.weights])
            lengths = np.array([2, 4])

        return Scores


def select(monkeypatch, metric, right=RIGHT):
    model = Model(right)

    def candidates(model, folder, average):
        assert average == 2 and folder.name == "checkpoints"
        for name in right:
            yield Candidate(name, lambda name=name: setattr(model, "weights", name))

    monkeypatch.setattr(selection, "_candidates", candidates)
    recipe = PlannedRecipe.of({**VALUES, "metric": metric})
    evaluator = TranslationEvaluator(recipe, TEXT, TEXT)
    return model, select_weights(model, evaluator, recipe)


@pytest.mark.parametrize(
    "metric, expected",
    [
        ("exact_match", {"mean": 50, "last": 75, "best": 25}),
        ("token_error_rate", {"mean": 50, "last": 25, "best": 75}),
        ("loss", {"mean": 1, "last": 0.5, "best": 1.5}),
    ],
)
def test_the_best_by_the_metric_is_selected(monkeypatch, metric, expected):
    model, selected = select(monkeypatch, metric)
    assert selected.name == model.weights == "last"
    assert selected.scores == pytest.approx(expected)
    assert len(set(model.searches)) <= 1  # the same search for all


def test_of_equal_candidates_the_first_is_selected(monkeypatch):
    model, selected = select(monkeypatch, "exact_match", {"mean": 2, "last": 2})
    assert selected.name == model.weights == "mean"


def test_no_candidate_is_selected_for_a_score_that_is_not_a_number(monkeypatch):
    scores = iter([np.nan, 5.0, 4.0])
    monkeypatch.setattr(TranslationEvaluator, "score", lambda *args: next(scores))
    model, selected = select(monkeypatch, "bleu")
    assert selected.name == model.weights == "last"
