"""Positions of a training run, and the checkpoint files that are named after them."""

import pathlib
import re
from typing import NamedTuple, Self

_NAME = re.compile(r"epoch-(\d+)(?:-after-batch-(\d+))?\.npz")


class RunPosition(NamedTuple):
    """Position of a run: complete epochs, and complete batches of the next epoch."""

    epochs: int
    batches: int = 0

    @property
    def file_name(self) -> str:
        """Name of the checkpoint file; epochs and batches are counted from 1."""
        if self.batches:
            return f"epoch-{self.epochs + 1:04}-after-batch-{self.batches:06}.npz"
        return f"epoch-{self.epochs:04}.npz"

    @property
    def resumes_at(self) -> str:
        """Where the run resumes, as in `"epoch 3, batch 21"`, counted from 1."""
        return f"epoch {self.epochs + 1}, batch {self.batches + 1}"

    @classmethod
    def from_file_name(cls, name: str) -> Self | None:
        """Returns the position in the name of a checkpoint file, or `None`."""
        if match := _NAME.fullmatch(name):
            is_end = match[2] is None
            return cls(int(match[1]) - (not is_end), int(match[2] or 0))
        return None


def checkpoint_files(folder: pathlib.Path) -> dict[RunPosition, pathlib.Path]:
    """Returns the checkpoint files in a folder by their positions, oldest first."""
    files = {
        position: path
        for path in folder.glob("*.npz")
        if (position := RunPosition.from_file_name(path.name)) is not None
    }
    return dict(sorted(files.items()))
