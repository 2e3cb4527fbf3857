"""Writes exports in a process with the TensorFlow backend."""

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

_LOAD_AND_CALL = """
import base64, json, pickle, sys
import keras
import keras_transformer
path, function, settings = pickle.loads(base64.b64decode(json.load(sys.stdin)))
function(keras.saving.load_model(path, compile=False), **settings)
"""


def run_python(code: str, standard_input: Any) -> str:
    """Runs code in a fresh process with the TensorFlow backend.

    Args:
        code: Python code.
        standard_input: what it reads there, as JSON.

    Returns:
        What it printed.

    Raises:
        RuntimeError: if it failed.
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
            "a child process of the export failed; its last words: "
            f"{process.stderr.strip()[-2000:]}"
        )
    return process.stdout


def in_tensorflow(
    write: Callable[..., None], model: Any, folder: pathlib.Path, **settings: Any
) -> None:
    """Writes a folder with a model of the TensorFlow backend.

    Args:
        write: function of a module, which takes a model, `folder` and `settings`.
        model: a `Seq2Seq` or an `Ensemble`; on other backends it is saved, and loaded
            in a child process.
        folder: the new folder.
        **settings: whatever can be pickled.
    """
    if keras.backend.backend() == "tensorflow":
        write(model, folder=folder, **settings)
        return
    file = folder.with_suffix(".keras")
    model.save(file)
    call = pickle.dumps((str(file), write, {"folder": folder, **settings}))
    run_python(_LOAD_AND_CALL, base64.b64encode(call).decode())
