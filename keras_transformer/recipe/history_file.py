"""A CSV file of the logs of each epoch."""

import csv
import io
import math
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import TypeAlias

import keras

from keras_transformer_runtime.files import written_whole

Row: TypeAlias = dict[str, str | float]


class HistoryFile(keras.callbacks.Callback):
    """Writes the logs of each epoch as a row of a CSV file.

    The column `epoch` counts from 1. A cell is empty if the epoch has no such log or
    if the log is NaN, such as BLEU between two evaluations. A resumed run replaces the
    rows of the epochs that it repeats. The file is replaced as a whole, so that a
    killed run leaves the rows of all complete epochs. If the file cannot be read or
    written, a warning is given and training continues.

    Differs from `keras.callbacks.CSVLogger`, which fixes the columns in the first
    epoch and appends the rows of repeated epochs.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__()
        self.path = pathlib.Path(path)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        number = epoch + 1
        try:
            self._write(number, logs or {})
        except (OSError, KeyError, ValueError) as error:
            warnings.warn(
                f"Epoch {number} is missing in {self.path}: {error!r}. Training "
                "continues.",
                stacklevel=2,
            )

    def _write(self, epoch: int, logs: Mapping[str, float]) -> None:
        rows = [row for row in self._read() if int(row["epoch"]) < epoch]
        values = {name: value for name, value in logs.items() if not math.isnan(value)}
        rows.append({"epoch": epoch, **values})
        columns = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        with written_whole(self.path) as file:
            file.write(text.getvalue().encode())

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return [{**row} for row in csv.DictReader(file)]
