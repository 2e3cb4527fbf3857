"""Settings and batches of all sides."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

# Decodes the sentences of these numbers with this batch size.
Decode = Callable[[list[int], int], None]

PAD, START, END = 0, 2, 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """The size of the model, the search, and the folder of `prepare`."""

    size: str
    num_beams: int
    length: int
    folder: str
    dtype: str = "float32"

    @property
    def dimensions(self) -> dict[str, int]:
        from keras_transformer.models import PRESETS

        return PRESETS[f"transformer_{self.size}"]

    def path(self, name: str) -> str:
        return str(pathlib.Path(self.folder) / name)

    @property
    def texts(self) -> list[str]:
        return json.loads(pathlib.Path(self.path("texts.json")).read_text())

    @property
    def rows(self) -> list[list[int]]:
        """Token ids of the texts, including end tokens."""
        return json.loads(pathlib.Path(self.path("rows.json")).read_text())

    @property
    def vocabulary(self) -> list[str]:
        return json.loads(pathlib.Path(self.path("vocabulary.json")).read_text())


def padded_batches(
    rows: list[list[int]], chosen: list[int], batch_size: int
) -> Iterator[np.ndarray]:
    """Yields batches sorted by length, with the padding of `generate`."""
    from keras_transformer.inference.token_ids import pad_rows

    ordered = sorted(chosen, key=lambda number: len(rows[number]))
    for start in range(0, len(ordered), batch_size):
        batch = [rows[number] for number in ordered[start : start + batch_size]]
        yield pad_rows(batch, len(batch), None, PAD)
