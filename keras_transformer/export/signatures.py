"""The inputs and outputs of a SavedModel."""

import os
import pathlib
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

NOT_FOR_CLIENTS = "__saved_model_init_op"


def describe_signatures(filepath: str | os.PathLike) -> dict[str, str]:
    """Describes each signature of a SavedModel.

    Args:
        filepath: folder of the SavedModel.

    Returns:
        By the name of a signature, its inputs and outputs with dtypes and shapes; a
        dot stands for any number.

    Raises:
        OSError: if there is no SavedModel.
        ValueError: if it is damaged.

    Example:

    ```python
    print(describe_signatures("saved_models/pronounce/1")["serving_default"])
    # text string(·,) → score float32(·,), text string(·,)
    ```
    """
    file = pathlib.Path(filepath, "saved_model.pb")
    content = file.read_bytes()
    try:
        (graph, *_) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except (DecodeError, ValueError) as error:
        raise ValueError(f"{file} must be of a SavedModel; it is damaged.") from error
    return {
        name: f"{_tensors(signature.inputs)} → {_tensors(signature.outputs)}"
        for name, signature in sorted(graph.signature_def.items())
        if name != NOT_FOR_CLIENTS
    }


def _tensors(infos: Any) -> str:
    return ", ".join(
        f"{name} {tf.dtypes.as_dtype(info.dtype).name}{_shape(info.tensor_shape)}"
        for name, info in sorted(infos.items())
    )


def _shape(shape: Any) -> str:
    return str(tf.TensorShape(shape)).replace("None", "·")
