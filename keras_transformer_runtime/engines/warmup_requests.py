"""Warm-up requests of a SavedModel, which a server replays when it starts."""

import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

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
        request = prediction_log().FromString(record).predict_log.request
        inputs = {
            entry.key: tf.make_ndarray(tensor_pb2.TensorProto.FromString(entry.value))
            for entry in request.inputs
        }
        yield WarmupRequest(request.model_spec.signature_name, inputs)


def prediction_log() -> type[Message]:
    """Returns the class of the message PredictionLog.

    It has a separate pool, because the default pool may contain the class of the
    package tensorflow-serving-api.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("PredictionLog"))
