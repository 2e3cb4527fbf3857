"""Requests that let a server compile all that it needs before it is used."""

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from tensorflow.core.framework import tensor_pb2

from keras_transformer.export.checking import sample_texts

FILE = "assets.extra/tf_serving_warmup_requests"

# What TensorFlow Serving's PredictionLog says of a request, by its field numbers. An
# input is an entry of a map, whose value is a TensorProto.
_MESSAGES = """
name: "prediction_log.proto"
message_type {
  name: "PredictionLog"
  field { name: "predict_log" number: 6 type: TYPE_MESSAGE type_name: "PredictLog" }
}
message_type {
  name: "PredictLog"
  field { name: "request" number: 1 type: TYPE_MESSAGE type_name: "PredictRequest" }
}
message_type {
  name: "PredictRequest"
  field { name: "model_spec" number: 1 type: TYPE_MESSAGE type_name: "ModelSpec" }
  field {
    name: "inputs" number: 2 type: TYPE_MESSAGE type_name: "Input"
    label: LABEL_REPEATED
  }
}
message_type {
  name: "ModelSpec"
  field { name: "signature_name" number: 3 type: TYPE_STRING }
}
message_type {
  name: "Input"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_BYTES }
}
"""


def warmup_requests(
    filepath: str | os.PathLike,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Reads the requests that a SavedModel wants to be warmed up with.

    TensorFlow Serving sends them by itself. Any other server should, before it takes
    requests of others.

    Args:
        filepath: folder of the SavedModel.

    Yields:
        The name of a signature, and its inputs by name; nothing if the model was
        exported with `warmup=()`.

    Example:

    ```python
    signatures = tf.saved_model.load("saved_models/pronounce/1").signatures
    for name, inputs in warmup_requests("saved_models/pronounce/1"):
        signatures[name](**{key: tf.constant(x) for key, x in inputs.items()})
    ```
    """
    file = pathlib.Path(filepath, FILE)
    if not file.exists():
        return
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        request = _prediction_log().FromString(record).predict_log.request
        yield (
            request.model_spec.signature_name,
            {
                entry.key: tf.make_ndarray(
                    tensor_pb2.TensorProto.FromString(entry.value)
                )
                for entry in request.inputs
            },
        )


def write_warmup(
    model: Any, folder: pathlib.Path, shapes: Iterable[tuple[int, int]]
) -> None:
    """Writes requests of given shapes into a SavedModel.

    The first is a text; the others are token ids, whose shape is exact. What they
    compile is the search, which the signatures share.

    Args:
        model: a `Seq2Seq` or an `Ensemble` with tokenizers.
        folder: the SavedModel.
        shapes: numbers of texts, with their lengths in tokens.
    """
    longest = model.max_source_length
    cut = ((batch, min(length, longest or length)) for batch, length in shapes)
    shapes = list(dict.fromkeys(cut))
    if not shapes:
        return
    text, *_ = sample_texts(model)
    (row,) = model.source_tokenizer.tokenize([text]).to_list()
    requests: list[tuple[str, dict[str, Any]]] = [("serving_default", {"text": [text]})]
    for batch, length in shapes:
        token_ids = [*np.resize(row, length - 1), model.end_token_id]
        rows = np.array([token_ids] * batch, "int32")
        requests.append(("tokens", {"token_ids": rows}))
    file = folder / FILE
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            writer.write(_record(signature, inputs))


def check_warmup(shapes: Iterable[tuple[int, int]]) -> None:
    """Makes sure that there can be requests of the shapes.

    Args:
        shapes: numbers of texts, with their lengths in tokens.

    Raises:
        ValueError: if a number is less than 1.
    """
    for shape in shapes:
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(
                "`warmup` must hold pairs of a number of texts and a length in tokens, "
                f"both at least 1; received {shape}."
            )


def _record(signature: str, inputs: dict[str, Any]) -> bytes:
    log = _prediction_log()()
    request = log.predict_log.request
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value)
        request.inputs.add(key=name, value=tensor.SerializeToString())
    return log.SerializeToString()


def _prediction_log() -> Any:
    """The class of the message, in a pool of its own: other programs may have it."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("PredictionLog"))
