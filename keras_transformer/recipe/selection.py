"""Selects the weights of a run: the last epoch, the best, or the mean of the last."""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import keras
import numpy as np

from keras_transformer.training import (
    average_checkpoints,
    list_checkpoints,
    load_checkpoint,
)

ModelT = TypeVar("ModelT", bound=keras.Model)


class Candidate(NamedTuple):
    """Weights of a run that may become its result."""

    name: str  # such as "mean of epochs 31 to 40"
    load: Callable[[], object]  # sets the weights of the model


class Selection(NamedTuple):
    """The name of the selected weights of a run, and the scores of all candidates."""

    name: str
    scores: dict[str, float]  # the metric on the validation text by name


def select_weights(
    model: ModelT,
    candidates: Sequence[Candidate],
    score: Callable[[ModelT], float],
    is_lower_better: bool,
) -> Selection:
    """Sets the weights of a float32 model to the candidate with the best score.

    Of equal candidates the first is selected.
    """
    scores = {}
    for candidate in candidates:
        candidate.load()
        scores[candidate.name] = score(model)

    def rank(candidate: Candidate) -> float:
        found = scores[candidate.name]
        return -np.inf if np.isnan(found) else -found if is_lower_better else found

    best = max(candidates, key=rank)
    if best is not candidates[-1]:
        best.load()
    return Selection(best.name, scores)


def weight_candidates(
    model: keras.Model, output: str, average: int, selection: bool = True
) -> list[Candidate]:
    """Returns the weights of a run that may become its result.

    They are the mean of the last epochs, the last epoch, and the best epoch by the
    metric while training, without those that are equal; the first one alone with
    `selection=False`.
    """
    candidates = [*_candidates(model, pathlib.Path(output, "checkpoints"), average)]
    return candidates if selection else candidates[:1]


def _candidates(
    model: keras.Model, folder: pathlib.Path, average: int
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
