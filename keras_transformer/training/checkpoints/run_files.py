"""The checkpoint files of a run."""

import os
import pathlib
import time
import warnings
from collections.abc import Mapping
from typing import cast

from keras_transformer.training.checkpoints import run_state, storage
from keras_transformer.training.checkpoints.best_epoch import BestEpoch
from keras_transformer.training.checkpoints.run_state import RunState
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files


class RunFiles:
    """Writes the checkpoints of a run and finds the newest.

    A checkpoint that cannot be written, or whose weights are not finite, causes a
    warning.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int,
        best: BestEpoch | None,
        is_writer: bool = True,
    ) -> None:
        self.folder = pathlib.Path(folder)
        self.keep = keep
        self.best = best
        self.is_writer = is_writer
        self._written_at = time.monotonic()
        self._has_warned = False

    def newest(self) -> tuple[pathlib.Path, RunState] | None:
        """Reads the newest checkpoint that is not damaged; `None` if there are none.

        If there are some, and none can be read, it raises `OSError`.
        """
        paths = [*checkpoint_files(self.folder).values()]
        readable = storage.readable_checkpoints(
            reversed(paths), check=run_state.check_state
        )
        newest = next(readable, None)
        if newest is not None:
            path, state = newest
            if self.best is not None:
                self.best.read(self.folder)
            return path, cast(RunState, state)
        if paths:
            raise OSError(
                "`folder` must have a checkpoint that can be read; received "
                f"`folder={str(self.folder)!r}`, where all {len(paths)} are damaged. "
                "Move them away to start from the beginning."
            )
        return None

    def seconds_since_write(self) -> float:
        """Returns the seconds since the last checkpoint, or since the beginning."""
        return time.monotonic() - self._written_at

    def write(self, position: RunPosition, state: RunState) -> None:
        """Writes a checkpoint and removes those that are no longer needed."""
        path = self.folder / position.file_name
        self._written_at = time.monotonic()
        if not self.is_writer:
            return
        if not run_state.all_finite(state["model"]):
            warnings.warn(
                f"The checkpoint {path} is not saved, as weights are NaN or infinite.",
                stacklevel=2,
            )
            return
        # First the best weights, as a resumed run does not repeat the epoch.
        if self.best is not None and "logs" in state:
            self._write_if_best(self.best, state)
        if _is_written(path, state):
            storage.remove_superseded(self.folder, position, self.keep)

    def _write_if_best(self, best: BestEpoch, state: RunState) -> None:
        logs = state["logs"]
        if best.monitor not in logs and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"`monitor={best.monitor!r}` must be one of the logs of an epoch to "
                f"keep the best; epoch {state['epoch']} has {', '.join(logs)}.",
                stacklevel=2,
            )
        names = ("epoch", "batch", "logs", "model")
        content = {name: state[name] for name in names}  # type: ignore[literal-required]
        if best.is_better(logs) and _is_written(self.folder / storage.BEST, content):
            best.set(logs)

    def resume_message(self, epochs: int) -> str:
        """Returns the text for a run that stops."""
        files = checkpoint_files(self.folder)
        if not files:
            return "Stopped before the first checkpoint."
        position, path = [*files.items()][-1]
        resumes = f"The same code resumes at {position.resumes_at}."
        if position.epochs >= epochs:
            resumes = "The run is complete."
        return f"Stopped. {resumes} Checkpoint: {path}"


def _is_written(path: pathlib.Path, state: Mapping[str, object]) -> bool:
    """Writes a file, or warns. Returns whether it is written."""
    try:
        storage.write_checkpoint(path, state)
    except OSError as error:
        warnings.warn(
            f"The checkpoint {path} is not saved: {error}. Training continues.",
            stacklevel=2,
        )
        return False
    return True
