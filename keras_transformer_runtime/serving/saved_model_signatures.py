"""The signatures of a SavedModel in the server, and their outputs as JSON."""

import math
import pathlib
from collections.abc import Collection, Mapping

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer_runtime.serving.rest import Row, Signature, TensorSpec


def set_threads(threads: int) -> None:
    """Sets the number of threads of an operation, before TensorFlow computes."""
    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def signatures_of(
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
) -> dict[str, Signature]:
    """Returns the signatures of a loaded SavedModel by name."""
    return {
        name: Signature(
            _specs(function.structured_input_signature[1]),
            _specs(function.structured_outputs),
        )
        for name, function in functions.items()
    }


def metadata_of(folder: pathlib.Path, names: Collection[str]) -> dict[str, object]:
    """Returns the signatures of a folder as in TensorFlow Serving's REST API."""
    content = (folder / "saved_model.pb").read_bytes()
    (graph, *_) = SavedModel.FromString(content).meta_graphs
    signatures = {
        name: MessageToDict(
            signature, preserving_proto_field_name=True, use_integers_for_enums=False
        )
        for name, signature in sorted(graph.signature_def.items())
        if name in names
    }
    return {"signature_def": {"signature_def": signatures}}


def json_row(cells: Mapping[str, np.ndarray]) -> Row:
    """Returns the outputs of one text as values of JSON.

    Raises `FloatingPointError` if one of them has NaN.
    """
    for cell in cells.values():
        if cell.dtype.kind == "f" and np.isnan(cell).any():
            raise FloatingPointError(
                "the model computes NaN for this request; check that its weights are "
                "finite"
            )
    return {name: _json_value(cell) for name, cell in cells.items()}


def _specs(specs: dict[str, tf.TensorSpec]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(spec.dtype.name, spec.shape.rank)
        for name, spec in specs.items()
    }


def _json_value(value: object) -> object:
    """Converts an array to nested lists, and bytes to str.

    A value that JSON cannot express becomes `None`, such as the score of a missing
    hypothesis, which is infinite.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
