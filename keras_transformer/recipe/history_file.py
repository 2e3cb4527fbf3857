"""The figures of a run by epoch, in a file."""

import csv
import io
import math
import os
import pathlib
import warnings
from typing import Any

import keras

from keras_transformer.files import written_whole


class HistoryFile(keras.callbacks.Callback):
    """Writes the logs of each epoch as a row of a CSV file, whole each time.

    A column is empty in the rows of epochs without that figure, or where it is NaN, as
    it is in epochs between two translations of the validation text. A run that goes on
    replaces the rows of the epochs that it makes again. A file that cannot be read or
    written is no reason to end a run: it warns.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__()
        self.path = pathlib.Path(path)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        try:
            self._add(epoch, logs or {})
        except (OSError, KeyError, ValueError) as error:
            warnings.warn(
                f"{self.path} lacks epoch {epoch}: {error!r}. Training goes on.",
                stacklevel=2,
            )

    def _add(self, epoch: int, logs: dict[str, Any]) -> None:
        rows = [row for row in self._read() if int(row["epoch"]) < epoch]
        known = {name: value for name, value in logs.items() if not math.isnan(value)}
        rows.append({"epoch": epoch, **known})
        columns = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        with written_whole(self.path) as file:
            file.write(text.getvalue().encode())

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
