"""The weights and the length penalty that a run selects."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_transformer import Checkpoints
from keras_transformer.recipe.held_out import ParallelText
from keras_transformer.recipe.selection import (
    Selection,
    select_weights,
    weight_candidates,
)
from keras_transformer.recipe.translation import TranslationEvaluator
from keras_transformer.text import WordTokenizer
from keras_transformer_runtime.engines.engine import Hypothesis, TokenScores
from keras_transformer_runtime.runs.recipe import PlannedRecipe

pytestmark = pytest.mark.once("torch")

WEIGHTS = (1.0, 4.0, 8.0)  # of the only weight, after each of three epochs
MEAN, LAST, BEST = "mean of epochs 2 to 3", "epoch 3, the last", "epoch 1, the best"
TEXT = ParallelText(["a b", "c d", "e f", "g h"], ["A B", "C D", "E F", "G H"])


def planned(output="runs/a", **options):
    values = {
        **{"train": ["a.tsv"], "valid": ["b.tsv"], "output": str(output)},
        **{"epochs": 3, "tokens_per_batch": 1024, "learning_rate": 1e-3, "average": 2},
        **{"warmup_steps": 5, "cooldown": 0, "save_every": 5, "dropout": 0.3},
    }
    return PlannedRecipe.of({**values, "metric": "bleu", **options})


class Sets(keras.callbacks.Callback):
    """Sets the weight after each epoch; the first epoch is the best."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([np.array([[WEIGHTS[epoch]]])])
        logs["val_bleu"] = 9 - epoch


def candidates_of(model, recipe):
    return weight_candidates(model, recipe.output, recipe.average, recipe.selection)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    layer = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("sgd", "mse")
    checkpoints = Checkpoints(
        folder / "checkpoints", keep=2, monitor="val_bleu", callbacks=[]
    )
    x = np.ones((1, 1))
    model.fit(x, x, epochs=3, verbose=0, callbacks=[Sets(), checkpoints])
    return folder, model


@pytest.mark.parametrize(
    "scores, is_lower_better, name, weight",
    [
        ((50, 75, 25), False, LAST, 8.0),
        ((50, 75, 25), True, BEST, 1.0),
        ((50, 50, 25), False, MEAN, 6.0),  # the first of equal candidates
        ((np.nan, 5, 4), False, LAST, 8.0),
    ],
)
def test_the_best_candidate_is_selected(run, scores, is_lower_better, name, weight):
    folder, model = run
    by_weight = dict(zip((6.0, 8.0, 1.0), scores, strict=True))

    def score(model):
        return by_weight[model.get_weights()[0].item()]

    candidates = candidates_of(model, planned(folder))
    selected = select_weights(model, candidates, score, is_lower_better)
    assert selected.name.startswith(name)
    assert [*selected.scores.values()] == pytest.approx(scores, nan_ok=True)
    assert model.get_weights()[0] == weight


def test_without_selection_there_is_one_candidate(run):
    folder, model = run
    [only] = candidates_of(model, planned(folder, selection=False))
    assert only.name.startswith(MEAN)
    only.load()
    assert model.get_weights()[0] == 6.0


class Engine:
    """Has two hypotheses of each text; the shorter one is more probable."""

    def __init__(self):
        self.calls = []

    def generate(self, texts, options):
        self.calls.append((len(texts), options))
        # Of 3 and 7 tokens, with the end token.
        found = [
            [
                Hypothesis(f"x {text.upper()}"[:3], -3.0),
                Hypothesis(f"x x x {text}", -5.0),
            ]
            for text in texts
        ]
        if options.num_hypotheses == 1:
            found = [[Hypothesis(text.upper())] for text in texts[:1]]
            found += [[Hypothesis("x")] for _ in texts[1:]]
        return found

    def score(self, sources, targets):
        return [TokenScores(["A"], [-1.0]), TokenScores(["B", "C", "D"], [-0.5] * 3)]


def evaluator_of(engine, **options):
    evaluator = TranslationEvaluator(planned(**options), TEXT, TEXT)
    evaluator._engine = SimpleNamespace(
        name="ctranslate2", of=lambda model: contextlib.nullcontext(engine)
    )
    return evaluator


@pytest.mark.parametrize(
    "metric, expected", [("exact_match", 25), ("token_error_rate", 75), ("loss", 0.625)]
)
def test_scores_of_translations(metric, expected):
    evaluator = evaluator_of(Engine(), metric=metric)
    assert evaluator.score(None) == pytest.approx(expected)
    assert evaluator.is_lower_better == (metric != "exact_match")


def chooses_longer(norm, penalty):
    return -5.0 / norm(7, penalty) > -3.0 / norm(3, penalty)


def test_a_penalty_chooses_among_the_hypotheses_of_one_search():
    engine = Engine()
    evaluator = evaluator_of(engine, num_beams=2, metric="chrf")
    words = WordTokenizer.train(lines=["x A B C D E F G H"])
    model = SimpleNamespace(source_tokenizer=words, target_tokenizer=words)
    figures = evaluator.result(model, Selection("epoch 3", {})).figures
    (texts, options), (tested, chosen) = engine.calls
    assert texts == tested == 4
    assert (options.num_beams, options.num_hypotheses) == (2, 2)
    assert options.length_penalty == 0
    norms = {
        "keras": lambda length, penalty: ((5 + length) / 6) ** penalty,
        "ctranslate2": lambda length, penalty: length**penalty,
    }
    longer = {
        name: [chooses_longer(norm, penalty) for penalty in (0.0, 0.6, 1.0, 1.4)]
        for name, norm in norms.items()
    }
    # Each penalty of CTranslate2 chooses by its own norm, and equal scores by order.
    scores = [*figures.valid_scores.values()]
    assert len({*scores}) == 2
    assert [score == scores[-1] for score in scores] == longer["ctranslate2"]
    best = (0.0, 0.6, 1.0, 1.4)[int(np.argmax(scores))]
    assert chosen.length_penalty == best
    assert longer["keras"] != longer["ctranslate2"]


@pytest.mark.parametrize("options", [{"selection": False}, {"num_beams": 1}])
def test_nothing_is_decoded_where_nothing_is_to_decide(options):
    engine = Engine()
    evaluator = evaluator_of(engine, **options)
    figures = evaluator.result(None, Selection("epoch 3", {})).figures
    assert len(engine.calls) == 1  # the test text
    assert figures.valid_scores == {} and figures.exact_match == 25
    assert "penalty" not in evaluator.description
