"""Averages the weights of the last checkpoints of a run."""

import itertools
import os
import pathlib
import warnings
from typing import Any

import keras
import numpy as np

from keras_transformer.arguments import check_ints
from keras_transformer.training.checkpoints import run_state, storage


def average_checkpoints(
    model: keras.Model, folder: str | os.PathLike, last: int = 10
) -> list[pathlib.Path]:
    """Sets the weights of a model to the mean of its last checkpoints.

    Training wanders around a minimum, and the mean of several points lies nearer to it
    than each of them. Only checkpoints at the end of an epoch count. The
    mean is taken in float64; weights that are not floating-point numbers come from
    the newest checkpoint. Optimizer and random generators stay as they are.

    Args:
        model: a built model, of the architecture that was trained.
        folder: path of the folder that was given to `Checkpoints`.
        last: int >= 1, how many checkpoints to average, or all if the run has fewer
            epochs. A warning says if some are gone: `Checkpoints` keeps 10 unless its
            `keep` says otherwise.

    Returns:
        list of paths, the files that were averaged, newest first. A damaged one is
        skipped with a warning.

    Raises:
        ValueError: if `last` is below 1, there is no checkpoint at the end of an
            epoch, or it belongs to another model.
        OSError: if a checkpoint cannot be read at the moment.

    Example:

    ```python
    checkpoints = Checkpoints("runs/en-de", data=train)
    model.fit(train.dataset, epochs=40, shuffle=False, callbacks=[checkpoints])
    average_checkpoints(model, "runs/en-de", last=10)
    model.save("en-de.keras")
    ```

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1
    """
    check_ints(1, last=last)
    found = storage.checkpoint_files(pathlib.Path(folder))
    ends = [path for position, path in found.items() if not position.batch]
    readable = storage.readable_checkpoints(reversed(ends), "model")
    newest: list[np.ndarray] = []
    sums: list[np.ndarray] = []
    averaged = []
    for path, state in itertools.islice(readable, last):
        saved = [entry for entry in state["model"] if not _is_random_state(entry)]
        run_state.check_same(model.weights, saved, path)
        values = [entry["value"] for entry in saved]
        newest = newest or values
        doubles = [value.astype("float64") for value in values]
        sums = [a + b for a, b in zip(sums, doubles, strict=True)] if sums else doubles
        averaged.append(path)
    if not averaged:
        raise ValueError(
            "`folder` must have a checkpoint at the end of an epoch; received "
            f"`folder={str(folder)!r}`, which has none. `Checkpoints` writes them."
        )
    wanted = min(last, max(position.epoch for position in found))
    if len(averaged) < wanted:
        warnings.warn(
            f"`last={last}` checkpoints are to be averaged; {folder} has "
            f"{len(averaged)} of the last {wanted} epochs. The mean is of these.",
            stacklevel=2,
        )
    for variable, total, value in zip(model.weights, sums, newest, strict=True):
        is_float = keras.backend.is_float_dtype(variable.dtype)
        variable.assign(total / len(averaged) if is_float else value)
    return averaged


def _is_random_state(entry: dict[str, Any]) -> bool:
    """Tells whether it belongs to a dropout layer, rather than to the architecture."""
    return entry["name"].endswith("seed_generator_state")
