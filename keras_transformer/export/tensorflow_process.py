"""Runs code in a child process with the TensorFlow backend."""

import base64
import json
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.export.protocols import ExportableModel

_LOAD_AND_CALL = """
import base64, json, pickle, sys
import keras
import keras_transformer
path, function, settings = pickle.loads(base64.b64decode(json.load(sys.stdin)))
function(keras.saving.load_model(path, compile=False), **settings)
"""


def run_python(code: str, standard_input: object) -> str:
    """Runs Python code in a child process with the TensorFlow backend on the CPU.

    Args:
        code: Python code.
        standard_input: value that the code reads from its standard input as JSON.

    Returns:
        The standard output of the process.

    Raises:
        RuntimeError: if the process fails.
    """
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(standard_input),
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(
            "a child process of the export failed; the end of its error output: "
            f"{process.stderr.strip()[-2000:]}"
        )
    return process.stdout


def write_with_tensorflow(
    write: Callable[..., None],
    model: ExportableModel,
    folder: pathlib.Path,
    **settings: Any,
) -> None:
    """Calls a function that writes a model with the TensorFlow backend.

    On other backends the model is saved in a `.keras` file, and a child process loads
    the file and calls the function.

    Args:
        write: function of a module, called as `write(model, folder=folder,
            **settings)`.
        model: the model.
        folder: folder to write.
        **settings: further arguments, which can be pickled.
    """
    if keras.backend.backend() == "tensorflow":
        write(model, folder=folder, **settings)
        return
    file = folder.with_suffix(".keras")
    model.save(file)
    call = pickle.dumps((str(file), write, {"folder": folder, **settings}))
    run_python(_LOAD_AND_CALL, base64.b64encode(call).decode())
