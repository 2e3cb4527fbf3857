"""A SavedModel in memory: answers several requests by one call of TensorFlow."""

import itertools
import math
import os
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 (its operations)
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.export import warmup_requests
from keras_transformer.serving.rest import Columns, Signature, TensorSpec

# The axes behind the first that are padded to the longest text of a batch. JSON needs
# no padding: what is answered about a text does not depend on the others.
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


class Replica:
    """A loaded SavedModel.

    Args:
        folder: of one version.
        batch_sizes: ascending ints, the numbers of texts that it computes with; a
            batch is filled up to the next one.
        threads: int, how many TensorFlow computes with; set before TensorFlow has
            computed anything.

    Attributes:
        signatures: `Signature`s by name.

    Example:

    ```python
    replica = Replica("saved_models/pronounce/1")
    replica.predict("serving_default", [{"text": ["queue"]}, {"text": ["a", "b"]}])
    ```
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        batch_sizes: Sequence[int] = (1,),
        threads: int | None = None,
    ):
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        self._folder = os.fspath(folder)
        self._batch_sizes = batch_sizes
        self._model = tf.saved_model.load(self._folder)
        self._functions = dict(self._model.signatures)
        self.signatures = {
            name: Signature(
                _specs(function.structured_input_signature[1]),
                _specs(function.structured_outputs),
            )
            for name, function in self._functions.items()
        }

    def warm_up(self) -> None:
        """Compiles what the SavedModel's warm-up requests need, for each batch size.

        A SavedModel without any is warmed up with a short text. The order is random,
        as replicas that start together find in the cache what another one compiled.
        """
        requests: list[tuple[str, Any]] = list(warmup_requests(self._folder))
        requests = requests or [("serving_default", {"text": ["a"]})]
        shapes = list(itertools.product(requests, self._batch_sizes))
        random.shuffle(shapes)
        for (signature, inputs), size in shapes:
            self._call(signature, {k: list(v)[:1] * size for k, v in inputs.items()})

    def metadata(self) -> dict[str, Any]:
        """The signatures as TF Serving's metadata has them."""
        with open(os.path.join(self._folder, "saved_model.pb"), "rb") as file:
            (graph, *_) = SavedModel.FromString(file.read()).meta_graphs
        signatures = {
            name: _metadata(signature)
            for name, signature in sorted(graph.signature_def.items())
            if name in self._functions
        }
        return {"signature_def": {"signature_def": signatures}}

    def predict(
        self, signature: str, requests: Sequence[Columns]
    ) -> list[Columns | str]:
        """Answers several requests together.

        If TensorFlow refuses what they ask for, each is asked alone, so that a bad
        one does not harm the others.

        Args:
            signature: name of the function.
            requests: the inputs of each, by name: lists with an entry for each text.

        Returns:
            For each, the outputs by name, or a message that says why there are none.
        """
        try:
            return list(self._answer(signature, requests))
        except tf.errors.InvalidArgumentError as error:
            if len(requests) == 1:
                return [_reason(error)]
        return [
            answer
            for request in requests
            for answer in self.predict(signature, [request])
        ]

    def _answer(self, signature: str, requests: Sequence[Columns]) -> Any:
        merged = {
            name: [value for request in requests for value in request[name]]
            for name in self.signatures[signature].inputs
        }
        outputs = self._call(signature, merged)
        start = 0
        for request in requests:
            rows = range(start, start + len(next(iter(request.values()))))
            yield {
                name: [_cell(name, row, outputs, signature) for row in rows]
                for name in outputs
            }
            start = rows.stop

    def _call(self, signature: str, inputs: Columns) -> dict[str, np.ndarray]:
        """The outputs, behind which are those of the rows that fill the batch."""
        rows = len(next(iter(inputs.values())))
        sizes = [size for size in self._batch_sizes if size >= rows]
        missing = sizes[0] - rows if sizes else 0
        filled = {
            name: tf.constant(
                [*column, *[column[0]] * missing],
                self.signatures[signature].inputs[name].dtype,
            )
            for name, column in inputs.items()
        }
        outputs = self._functions[signature](**filled)
        return {name: outputs[name].numpy() for name in sorted(outputs)}


def _specs(specs: dict[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(spec.dtype.name, spec.shape.rank)
        for name, spec in specs.items()
    }


def _metadata(signature: SignatureDef) -> dict[str, Any]:
    return MessageToDict(
        signature, preserving_proto_field_name=True, use_integers_for_enums=False
    )


def _reason(error: Exception) -> str:
    """What an assertion of the graph says, without the graph's names."""
    text = str(error)
    stated = re.search(r"`\w+` must[^\]\n']*", text)
    return stated.group() if stated else text.splitlines()[0]


def _cell(name: str, row: int, outputs: dict[str, Any], signature: str) -> Any:
    """One output of one text, without padding."""
    axes = PADDED.get(signature, {}).get(name, ())
    own = tuple(
        slice(None if side is None else _width(side, row, outputs)) for side in axes
    )
    return _json_values(outputs[name][(row, *own)])


def _width(side: str, row: int, outputs: dict[str, Any]) -> int:
    """How many tokens a text has, or the longest of its hypotheses."""
    if side == "target" and "length" in outputs:
        return int(outputs["length"][row].max())
    tokens = outputs["tokens" if side == "target" else "source_tokens"][row]
    used = np.flatnonzero(tokens != b"")
    return int(used[-1]) + 1 if used.size else 0


def _json_values(values: Any) -> Any:
    """An array, or an entry of one, as nested lists.

    Bytes are text there, and what JSON has no number for is `None`: the score of a
    hypothesis that there is not.
    """
    if isinstance(values, np.ndarray | np.generic):
        values = values.tolist()
    if isinstance(values, list):
        return [_json_values(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values.decode("utf-8", "replace") if isinstance(values, bytes) else values
