"""Warm-up requests of a SavedModel, which a server replays when it starts."""

import os
import pathlib
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from google.protobuf.message import Message
from tensorflow.core.framework import tensor_pb2

from keras_transformer.export.checking import sample_texts
from keras_transformer.export.model_support import array_input, tokenizers_of
from keras_transformer.models import GenerativeModel

# Pairs of a number of texts and their length in tokens.
WarmupShapes: TypeAlias = Sequence[tuple[int, int]]

FILE = "assets.extra/tf_serving_warmup_requests"

# The part of TensorFlow Serving's PredictionLog that describes a request. An input is
# an entry of a map, whose value is a TensorProto.
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


class WarmupRequest(NamedTuple):
    """A request of a SavedModel's warm-up.

    Attributes:
        signature: name of the signature.
        inputs: arrays by the names of the inputs.
    """

    signature: str
    inputs: dict[str, np.ndarray]


def warmup_requests(filepath: str | os.PathLike) -> Iterator[WarmupRequest]:
    """Reads the warm-up requests of a SavedModel.

    TensorFlow Serving replays them when it loads the model. Other servers should replay
    them before they accept requests, so that no request waits for compilation.

    Args:
        filepath: folder of the SavedModel.

    Yields:
        `WarmupRequest`s; none if the model was exported with `warmup=()`.

    Example:

    ```python
    signatures = tf.saved_model.load("saved_models/pronounce/1").signatures
    for signature, inputs in warmup_requests("saved_models/pronounce/1"):
        signatures[signature](**{key: tf.constant(x) for key, x in inputs.items()})
    ```
    """
    file = pathlib.Path(filepath, FILE)
    if not file.exists():
        return
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        request = _prediction_log().FromString(record).predict_log.request
        inputs = {
            entry.key: tf.make_ndarray(tensor_pb2.TensorProto.FromString(entry.value))
            for entry in request.inputs
        }
        yield WarmupRequest(request.model_spec.signature_name, inputs)


def write_warmup(
    model: GenerativeModel,
    folder: pathlib.Path,
    shapes: WarmupShapes,
    signatures: Collection[str] = (),
) -> None:
    """Writes warm-up requests into a SavedModel that has the given signatures.

    The first request is a text. The others are token ids, which have exactly the given
    shapes, up to `max_source_length`. The requests compile the search, which all
    signatures that decode share, except for `continue` and `constrained`. For a model
    that takes arrays, the length is the size of axes of unknown size.
    """
    limit = model.max_source_length
    limited = ((batch, min(length, limit or length)) for batch, length in shapes)
    shapes = list(dict.fromkeys(limited))
    if not shapes:
        return
    if model.source_spec is not None:
        _write(folder, _array_requests(model, shapes))
        return
    text, *_ = sample_texts(model)
    (row,) = tokenizers_of(model).source.tokenize([text]).to_list()
    texts, empty = np.array([text], object), np.array([""], object)
    requests = [WarmupRequest("serving_default", {"text": texts})]
    if "continue" in signatures:
        inputs = {"text": texts, "state": empty, "seed": np.zeros(1, "int32")}
        requests.append(WarmupRequest("continue", inputs))
    if "constrained" in signatures:
        inputs = {"text": texts, "prefix": empty, "constraints": empty}
        requests.append(WarmupRequest("constrained", inputs))
    for batch, length in shapes:
        token_ids = [*np.resize(row, length - 1), model.end_token_id]
        rows = np.array([token_ids] * batch, "int32")
        requests.append(WarmupRequest("tokens", {"token_ids": rows}))
    _write(folder, requests)


def _array_requests(
    model: GenerativeModel, shapes: WarmupShapes
) -> list[WarmupRequest]:
    """Returns requests of zeros; the lengths are those of axes of unknown size."""
    shape, dtype = array_input(model)
    sizes = [
        (batch, *(length if size is None else size for size in shape))
        for batch, length in shapes
    ]
    return [
        WarmupRequest("serving_default", {"source": np.zeros(size, dtype)})
        for size in dict.fromkeys(sizes)
    ]


def _write(folder: pathlib.Path, requests: Sequence[WarmupRequest]) -> None:
    file = folder / FILE
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for request in requests:
            writer.write(_serialize(request))


def check_warmup(shapes: WarmupShapes) -> None:
    """Raises `ValueError` unless shapes are pairs of numbers of at least 1."""
    for shape in shapes:
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(
                "`warmup` must hold pairs of a number of texts and a length in tokens, "
                f"both at least 1; received {shape}."
            )


def _serialize(request: WarmupRequest) -> bytes:
    """Returns a serialized PredictionLog."""
    log = _prediction_log()()
    message = log.predict_log.request
    message.model_spec.signature_name = request.signature
    for name, value in request.inputs.items():
        tensor = tf.make_tensor_proto(value)
        message.inputs.add(key=name, value=tensor.SerializeToString())
    return log.SerializeToString()


def _prediction_log() -> type[Message]:
    """Returns the class of the message PredictionLog.

    It has a separate pool, because the default pool may contain the class of the
    package tensorflow-serving-api.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("PredictionLog"))
