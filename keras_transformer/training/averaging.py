"""Average of the weights of the last checkpoints."""

import itertools
import os
import pathlib
import warnings

import keras
import numpy as np

from keras_transformer.training.checkpoints import run_state, storage
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.runs.run_position import checkpoint_files


def average_checkpoints(
    model: keras.Model, folder: str | os.PathLike, last: int = 10
) -> list[pathlib.Path]:
    """Sets the weights of a model to the average of its last checkpoints.

    Training moves around a minimum, and the average of several points is closer to it
    than each of them. Only checkpoints at the end of an epoch are used. The average is
    computed in float64. Weights that are not floating-point numbers are those of the
    newest checkpoint. Optimizer and random generators do not change.

    Args:
        model: a built `keras.Model` with the architecture of the checkpoints.
        folder: str or path, the folder of `Checkpoints`.
        last: int >= 1, number of checkpoints to average. If the run has fewer epochs,
            all are averaged. A warning is issued if some have been removed:
            `Checkpoints` keeps 10 unless `keep` is given.

    Returns:
        List of the paths of the averaged files, newest first. A damaged file is skipped
        with a warning.

    Raises:
        ValueError: if `last` is below 1, if there is no checkpoint at the end of an
            epoch, or if a checkpoint belongs to another model.
        OSError: if a checkpoint temporarily cannot be read.

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
    found = checkpoint_files(pathlib.Path(folder))
    ends = [path for position, path in found.items() if not position.batches]
    readable = storage.readable_checkpoints(
        reversed(ends), "model", check=run_state.check_variables
    )
    newest: list[np.ndarray] = []
    frozen: list[bool] = []
    sums: list[np.ndarray] = []
    averaged = []
    for path, state in itertools.islice(readable, last):
        saved = run_state.without_random_states(state["model"])
        run_state.check_same(model.weights, saved, path)
        values = [entry["value"] for entry in saved]
        frozen = ["checksum" in entry for entry in saved]  # in all of them, with LoRA
        newest = newest or values
        doubles = [value.astype("float64") for value in values]
        sums = [a + b for a, b in zip(sums, doubles, strict=True)] if sums else doubles
        averaged.append(path)
    if not averaged:
        raise ValueError(
            "`folder` must have a checkpoint at the end of an epoch; received "
            f"`folder={str(folder)!r}`, which has none. Train with `Checkpoints`."
        )
    expected = min(last, max(position.epochs for position in found))
    if len(averaged) < expected:
        warnings.warn(
            f"`last={last}` requests the last {expected} epochs; {folder} has "
            f"checkpoints of {len(averaged)} of them. These are averaged.",
            stacklevel=2,
        )
    variables = zip(model.weights, sums, newest, frozen, strict=True)
    for variable, total, value, is_frozen in variables:
        if is_frozen:
            continue
        is_float = keras.backend.is_float_dtype(variable.dtype)
        variable.assign(total / len(averaged) if is_float else value)
    return averaged
