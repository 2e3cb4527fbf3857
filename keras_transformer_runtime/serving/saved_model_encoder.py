"""A classifier or an encoder in memory: a SavedModel that takes texts of any length."""

import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.engines.saved_model_encoder import SavedModelEncoder
from keras_transformer_runtime.engines.signature_call import call_signature
from keras_transformer_runtime.serving.loaded_model import LoadedModel
from keras_transformer_runtime.serving.rest import Row, TensorSpec
from keras_transformer_runtime.serving.saved_model_signatures import (
    json_row,
    metadata_of,
    set_threads,
    signatures_of,
)
from keras_transformer_runtime.serving.server_options import ServerOptions

SPECIAL_TOKENS = 4  # of a text or a pair, at most
PER_WORD = ("word", "tag", "score", "probabilities")  # outputs padded to the longest


class ServedEncoder(LoadedModel):
    """The SavedModel of a `TextClassifier`, a `TokenClassifier` or a `TextEncoder`.

    It computes batches of any shape, and compiles nothing.

    Args:
        folder: folder of the SavedModel.
        description: content of its file `keras_transformer.json`.
        max_texts: int, maximum number of texts of a batch.
        threads: int, number of threads of an operation.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        description: EncoderDescription,
        max_texts: int,
        threads: int,
    ):
        set_threads(threads)
        self.task = description.task
        self.max_texts = max_texts
        self._folder = folder
        self._encoder = SavedModelEncoder(folder, description)
        self.signatures = signatures_of(self._encoder.signatures)
        for name, signature in self.signatures.items():  # prepares the graphs
            self.call(name, [{key: _sample(x) for key, x in signature.inputs.items()}])

    def facts(self, limits: ServerOptions) -> dict[str, object]:
        return {
            "engine": "saved_model",
            "class_names": self._encoder.description.class_names,
            "multi_label": self._encoder.description.multi_label,
            "max_length": self._encoder.description.max_length,
        }

    def metadata(self) -> dict[str, object]:
        return metadata_of(self._folder, self.signatures)

    def close(self) -> None:
        pass

    def sizes(self, rows: Sequence[Row]) -> list[int]:
        """Returns the numbers of characters, since those of tokens are not known."""
        limit = self._encoder.description.max_length or math.inf
        sizes = [SPECIAL_TOKENS + sum(map(_size, row.values())) for row in rows]
        return [int(min(size, limit)) for size in sizes]

    def call(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        outputs = call_signature(self._encoder.signatures[name], columns)
        return [json_row(_cells(outputs, place)) for place in range(len(rows))]


def _sample(spec: TensorSpec) -> object:
    """Returns a value of an input, without the axis of the batch."""
    value: object = "a" if spec.dtype == "string" else 0
    for _ in range(1, spec.rank):
        value = [value]
    return value


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str) else 1


def _cells(outputs: Mapping[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
    """Returns the outputs of a text; those of a tagger for its own words alone."""
    cells = {name: np.asarray(outputs[name][row]) for name in sorted(outputs)}
    if "tag" not in cells:
        return cells
    places = np.flatnonzero(cells["tag"] != b"")
    count = places[-1] + 1 if places.size else 0
    return cells | {name: cells[name][:count] for name in PER_WORD}
