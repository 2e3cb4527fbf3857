"""The weights that a run selects."""

import keras
import numpy as np
import pytest

from keras_transformer import Checkpoints
from keras_transformer.recipe.held_out import ParallelText
from keras_transformer.recipe.selection import select_weights
from keras_transformer.recipe.translation import TranslationEvaluator
from keras_transformer_runtime.runs.recipe import PlannedRecipe

pytestmark = pytest.mark.once("torch")

WEIGHTS = (1.0, 4.0, 8.0)  # of the only weight, after each of three epochs
MEAN, LAST, BEST = "mean of epochs 2 to 3", "epoch 3, the last", "epoch 1, the best"
TEXT = ParallelText(["a b", "c d", "e f", "g h"], ["A B", "C D", "E F", "G H"])


def planned(output="runs/a", metric="bleu"):
    values = {
        **{"train": ["a.tsv"], "valid": ["b.tsv"], "output": str(output)},
        **{"epochs": 3, "tokens_per_batch": 1024, "learning_rate": 1e-3, "average": 2},
        **{"warmup_steps": 5, "cooldown": 0, "save_every": 5, "dropout": 0.3},
    }
    return PlannedRecipe.of({**values, "metric": metric})


class Sets(keras.callbacks.Callback):
    """Sets the weight after each epoch; the first epoch is the best."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([np.array([[WEIGHTS[epoch]]])])
        logs["val_bleu"] = 9 - epoch


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

    selected = select_weights(model, score, is_lower_better, planned(folder))
    assert selected.name.startswith(name)
    assert [*selected.scores.values()] == pytest.approx(scores, nan_ok=True)
    assert model.get_weights()[0] == weight


class Model:
    """Translates one of four texts correctly."""

    def generate(self, texts, search, return_truncated=False):
        assert search.num_beams == 5
        outputs = [texts[0].upper(), *("x" for _ in texts[1:])]
        return (outputs, np.zeros(len(texts), bool)) if return_truncated else outputs

    def score(self, sources, targets):
        class Scores:
            scores, lengths = -np.array([1.0, 2.0]), np.array([2, 4])

        return Scores


@pytest.mark.parametrize(
    "metric, expected", [("exact_match", 25), ("token_error_rate", 75), ("loss", 0.5)]
)
def test_scores_of_translations(metric, expected):
    evaluator = TranslationEvaluator(planned(metric=metric), TEXT, TEXT)
    assert evaluator.score(Model()) == pytest.approx(expected)
    assert evaluator.is_lower_better == (metric != "exact_match")
