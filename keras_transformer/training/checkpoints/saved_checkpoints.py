"""The checkpoints in a folder, and their weights."""

import dataclasses
import os
import pathlib
from typing import Self

import keras

from keras_transformer.training.checkpoints import run_state, storage
from keras_transformer.types import Logs
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint file of `Checkpoints`.

    Attributes:
        path: path of the file.
        epoch: int, number of the epoch, counted from 1.
        batch: int, number of batches of that epoch before the checkpoint; `None` = it
            is at the end of the epoch.
        logs: dictionary of floats, the logs of the epoch at its end, such as
            `"val_loss"`. Empty within an epoch.
    """

    path: pathlib.Path
    epoch: int
    batch: int | None
    logs: Logs

    @property
    def is_best(self) -> bool:
        """Whether it is `best.npz`, the best epoch by `monitor` of `Checkpoints`."""
        return self.path.name == storage.BEST

    @classmethod
    def _of(cls, path: pathlib.Path, state: storage.Content) -> Self:
        position = RunPosition(state["epoch"], state["batch"])
        return cls(
            path,
            epoch=position.epochs + (position.batches > 0),
            batch=position.batches or None,
            logs=state.get("logs", {}),
        )


def list_checkpoints(folder: str | os.PathLike) -> list[SavedCheckpoint]:
    """Lists the checkpoints in a folder, with their epochs and logs.

    Args:
        folder: str or path, the folder of `Checkpoints`.

    Returns:
        List of `SavedCheckpoint`, in the order of training. `best.npz` is in the place
        of its epoch. A damaged file is skipped with a warning.

    Raises:
        OSError: if a checkpoint temporarily cannot be read.

    Example:

    ```python
    for checkpoint in list_checkpoints("runs/en-de"):
        print(checkpoint.path.name, checkpoint.epoch, checkpoint.logs.get("val_loss"))
    ```
    """
    folder = pathlib.Path(folder)
    paths = [*checkpoint_files(folder).values()]
    if (best := folder / storage.BEST).exists():
        paths.insert(0, best)
    readable = run_state.readable_logs(paths)
    found = [SavedCheckpoint._of(path, state) for path, state in readable]
    return sorted(
        found, key=lambda each: (each.epoch, each.batch is None, each.batch or 0)
    )


def load_checkpoint(model: keras.Model, path: str | os.PathLike) -> SavedCheckpoint:
    """Sets the weights of a model to those of a checkpoint.

    Optimizer and random generators do not change. To resume a run, call `fit` with
    `Checkpoints`.

    Args:
        model: a built `keras.Model` with the architecture of the checkpoint.
        path: str or path of the file, such as `runs/en-de/best.npz`.

    Returns:
        The `SavedCheckpoint`, with its epoch and logs.

    Raises:
        ValueError: if the checkpoint belongs to another model.
        OSError: if the file does not exist, is damaged or cannot be read.

    Example:

    ```python
    checkpoints = Checkpoints("runs/en-de", data=train, monitor="val_loss")
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=40,
        shuffle=False,
        callbacks=[checkpoints],
    )
    best = load_checkpoint(model, "runs/en-de/best.npz")
    print(f"the weights of epoch {best.epoch}, with {best.logs['val_loss']:.3f}")
    ```
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"`path` must be a checkpoint; received `path={str(path)!r}`, which does "
            "not exist. `Checkpoints(monitor=...)` writes best.npz, and "
            "`list_checkpoints` lists all checkpoints of a folder."
        )
    names = ("epoch", "batch", "logs", "model")
    state = storage.read_checkpoint(path, *names, check=run_state.check_weights)
    weights = run_state.without_random_states(state["model"])
    run_state.restore_variables(model.weights, weights, path)
    return SavedCheckpoint._of(path, state)
