"""Selects the weights of a run: the last epoch, the best, or the mean of the last."""

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from keras_transformer import evaluation
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.task import Evaluator
from keras_transformer.training import (
    average_checkpoints,
    list_checkpoints,
    load_checkpoint,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe


class Candidate(NamedTuple):
    """Weights of a run that may become its result.

    Attributes:
        name: str, such as `"mean of epochs 31 to 40"`.
        load: sets the weights of the model.
    """

    name: str
    load: Callable[[], object]


class Selection(NamedTuple):
    """The selected weights of a run.

    Attributes:
        name: str, the name of the candidate.
        scores: dictionary of floats, the metric of each candidate on the validation
            text, by name.
    """

    name: str
    scores: dict[str, float]


def select_weights(
    model: GenerativeModel, evaluator: Evaluator, recipe: PlannedRecipe
) -> Selection:
    """Sets the weights of a model to the best candidate by the metric of the recipe.

    The candidates are the last epoch, the best epoch by the metric while training, and
    the mean of the last epochs. All are evaluated on the whole validation text with
    the same search. Of equal candidates the mean is selected, then the last epoch.

    Args:
        model: the model, float32.
        evaluator: scores the model on the validation text.
        recipe: the options.

    Returns:
        The `Selection`.
    """
    folder = pathlib.Path(recipe.output, "checkpoints")
    candidates = [*_candidates(model, folder, recipe.average)]
    scores = {}
    for candidate in candidates:
        candidate.load()
        scores[candidate.name] = evaluator.score(model)
    is_error = evaluator.is_lower_better

    def rank(candidate: Candidate) -> float:
        score = scores[candidate.name]
        return -np.inf if np.isnan(score) else -score if is_error else score

    best = max(candidates, key=rank)
    if best is not candidates[-1]:
        best.load()
    return Selection(best.name, scores)


def is_lower_better(metric: str) -> bool:
    """Returns whether lower values of a metric are better."""
    return metric == "loss" or evaluation.METRICS[metric].is_error


def _candidates(
    model: GenerativeModel, folder: pathlib.Path, average: int
) -> Iterator[Candidate]:
    """Yields different weights of a run."""
    saved = list_checkpoints(folder)
    ends = [each for each in saved if each.batch is None and not each.is_best]
    averaged = ends[-average:]
    if len(averaged) > 1:
        yield Candidate(
            f"mean of epochs {averaged[0].epoch} to {averaged[-1].epoch}",
            functools.partial(average_checkpoints, model, folder, len(averaged)),
        )
    yield Candidate(
        f"epoch {ends[-1].epoch}, the last",
        functools.partial(load_checkpoint, model, ends[-1].path),
    )
    for best in saved:
        if best.is_best and best.epoch != ends[-1].epoch:
            yield Candidate(
                f"epoch {best.epoch}, the best while training",
                functools.partial(load_checkpoint, model, best.path),
            )
