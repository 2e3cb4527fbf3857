"""A SavedModel in memory, which computes several requests in one call."""

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers its operations)
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.export.saved_model.warmup import WarmupRequest, warmup_requests
from keras_transformer.serving.rest import (
    Columns,
    Failure,
    Result,
    Signature,
    TensorSpec,
)

# The axes after the first that are padded to the longest text of a batch. The padding
# is removed from responses, so that they do not depend on the other texts.
PADDED: dict[str, dict[str, tuple[str | None, ...]]] = {
    "tokens": {"token_ids": (None, "target")},
    "score": {"tokens": ("target",), "token_scores": ("target",)},
    "attention": {
        "source_tokens": ("source",),
        "tokens": ("target",),
        "attention": ("target", "source"),
        "positions": ("target",),
    },
    "attention_scores": {
        "source_tokens": ("source",),
        "tokens": ("target",),
        "attention_scores": (None, None, "target", "source"),
    },
}


NOT_FINITE = Failure(
    "the model computes NaN for this request; check that its weights are finite"
)


class Replica:
    """A loaded SavedModel."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        batch_sizes: Sequence[int] = (1,),
        threads: int | None = None,
    ):
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        self.folder = os.fspath(folder)
        self.batch_sizes = tuple(batch_sizes)
        self.compiled_sizes = self.batch_sizes
        self._model = tf.saved_model.load(self.folder)
        self.functions = dict(self._model.signatures)
        self._specs = {
            name: function.structured_input_signature[1]
            for name, function in self.functions.items()
        }
        self.signatures = {
            name: Signature(
                _specs(self._specs[name]), _specs(function.structured_outputs)
            )
            for name, function in self.functions.items()
        }

    def warmup_requests(self) -> list[WarmupRequest]:
        """Returns the warm-up requests of the SavedModel, or one with a short text."""
        text = np.array(["a"], object)
        short = WarmupRequest("serving_default", {"text": text})
        return list(warmup_requests(self.folder)) or [short]

    def metadata(self) -> dict[str, object]:
        """Returns the signatures as in TensorFlow Serving's REST API."""
        with open(os.path.join(self.folder, "saved_model.pb"), "rb") as file:
            (graph, *_) = SavedModel.FromString(file.read()).meta_graphs
        signatures = {
            name: _metadata(signature)
            for name, signature in sorted(graph.signature_def.items())
            if name in self.functions
        }
        return {"signature_def": {"signature_def": signatures}}

    def predict(self, signature: str, requests: Sequence[Columns]) -> list[Result]:
        """Computes several requests, together if a compiled batch has room for all.

        If TensorFlow rejects an input, each request is computed separately, so that
        only the invalid ones fail, and arrays of different shapes do not.
        """
        return [
            result
            for batch in self._batches(requests)
            for result in self._predict_batch(signature, batch)
        ]

    def _batches(self, requests: Sequence[Columns]) -> Iterator[list[Columns]]:
        """Splits requests into batches of at most the largest compiled size."""
        batch: list[Columns] = []
        for request in requests:
            if batch and sum(map(_rows, [*batch, request])) > self.compiled_sizes[-1]:
                yield batch
                batch = []
            batch.append(request)
        if batch:
            yield batch

    def _predict_batch(
        self, signature: str, requests: Sequence[Columns]
    ) -> list[Result]:
        try:
            return list(self._compute(signature, requests))
        except tf.errors.InvalidArgumentError as error:
            if len(requests) == 1:
                return [_error_message(error)]
        return [
            result
            for request in requests
            for result in self._predict_batch(signature, [request])
        ]

    def _compute(self, signature: str, requests: Sequence[Columns]) -> Iterator[Result]:
        """Yields the result of each request."""
        merged = {
            name: [value for request in requests for value in request[name]]
            for name in self.signatures[signature].inputs
        }
        outputs = self.call(signature, self._padded(merged))
        start = 0
        for request in requests:
            rows = range(start, start + _rows(request))
            cells = {
                name: [_cell(name, row, outputs, signature) for row in rows]
                for name in outputs
            }
            if any(map(_has_nan, itertools.chain(*cells.values()))):
                yield NOT_FINITE
            else:
                yield {name: [*map(_json_values, cells[name])] for name in cells}
            start = rows.stop

    def call(self, signature: str, inputs: Columns) -> dict[str, np.ndarray]:
        """Computes a batch as it is."""
        specs = self._specs[signature]
        tensors = {
            name: _tensor(name, column, specs[name]) for name, column in inputs.items()
        }
        outputs = self.functions[signature](**tensors)
        return {name: outputs[name].numpy() for name in sorted(outputs)}

    def _padded(self, inputs: Columns) -> Columns:
        """Repeats the first text until the batch has the next size."""
        rows = _rows(inputs)
        sizes = [*self.compiled_sizes, *self.batch_sizes]
        missing = next((size for size in sizes if size >= rows), rows) - rows
        return {
            name: [*column, *[column[0]] * missing] for name, column in inputs.items()
        }


def _tensor(name: str, column: list[object], spec: tf.TensorSpec) -> tf.Tensor:
    try:
        tensor = tf.constant(column, spec.dtype)
    except ValueError:
        raise _invalid(f"`{name}` must have entries of one shape") from None
    if not spec.shape.is_compatible_with(tensor.shape):
        raise _invalid(f"`{name}` must have shape {spec.shape}, not {tensor.shape}")
    return tensor


def _invalid(message: str) -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, message)


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _specs(specs: dict[str, tf.TensorSpec]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(spec.dtype.name, spec.shape.rank)
        for name, spec in specs.items()
    }


def _metadata(signature: SignatureDef) -> dict[str, object]:
    return MessageToDict(
        signature, preserving_proto_field_name=True, use_integers_for_enums=False
    )


def _error_message(error: Exception) -> str:
    """Returns the message of an assertion without the names of the graph."""
    text = str(error)
    message = re.search(r"`\w+` must[^\]\n']*", text)
    return message.group() if message else text.splitlines()[0]


def _cell(name: str, row: int, outputs: dict[str, np.ndarray], signature: str) -> Any:
    """Returns one output of one text without padding."""
    axes = PADDED.get(signature, {}).get(name, ())
    own = tuple(
        slice(None if side is None else _width(side, row, outputs)) for side in axes
    )
    return outputs[name][(row, *own)]


def _has_nan(values: object) -> bool:
    if not isinstance(values, np.ndarray | np.generic) or values.dtype.kind != "f":
        return False
    return bool(np.isnan(values).any())


def _width(side: str, row: int, outputs: dict[str, np.ndarray]) -> int:
    """Returns the number of tokens of a text or of its longest hypothesis."""
    if side == "target" and "length" in outputs:
        return int(outputs["length"][row].max())
    tokens = outputs["tokens" if side == "target" else "source_tokens"][row]
    used = np.flatnonzero(tokens != b"")
    return int(used[-1]) + 1 if used.size else 0


def _json_values(values: object) -> object:
    """Converts an array to nested lists, and bytes to str.

    A value that JSON cannot express becomes `None`, such as the score of a missing
    hypothesis, which is infinite.
    """
    if isinstance(values, np.ndarray | np.generic):
        values = values.tolist()
    if isinstance(values, list):
        return [_json_values(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values.decode("utf-8", "replace") if isinstance(values, bytes) else values
