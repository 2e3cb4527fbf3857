"""Runs code in a child process with the TensorFlow backend."""

import base64
import contextlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable

import keras

# A child process that takes longer is stuck.
TIMEOUT_SECONDS = 3600.0

# Runs before the code of a child process. The folders of the parent come last, so that
# no file in them takes the place of an installed module. The parent keeps the pipe open
# until the child has ended, so the end of the pipe is the end of the parent.
_START = """
import io, os, sys, threading
sys.path += [path for path in {folders!r} if path not in sys.path]
pipe, sys.stdin = sys.stdin.fileno(), io.StringIO(sys.stdin.readline())
def end_with_parent():
    os.read(pipe, 1)
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
"""

_LOAD_AND_CALL = """
import base64, json, pickle, sys
import keras
import keras_transformer
path, function, settings = pickle.loads(base64.b64decode(json.load(sys.stdin)))
function(keras.saving.load_model(path, compile=False), **settings)
"""


def run_python(code: str, standard_input: object) -> str:
    """Returns the output of Python code in a process with TensorFlow on the CPU.

    The code reads `standard_input` as JSON. The child imports no module from the
    working folder unless this process does. It ends when this process ends.
    `RuntimeError` is raised if it fails, or takes longer than `TIMEOUT_SECONDS`.
    """
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    start = _START.format(folders=[path for path in sys.path if path])
    # Without "-P" the working folder is the first in which the child looks for modules.
    with subprocess.Popen(
        [sys.executable, "-P", "-c", start + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        errors="replace",
    ) as process:
        pipe, process.stdin = process.stdin, None  # `communicate` would close it
        assert pipe is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # the child has ended already
                pipe.write(json.dumps(standard_input) + "\n")
                pipe.flush()
            output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                "A child process of the export must end within "
                f"{TIMEOUT_SECONDS:.0f} s; it did not, and was stopped."
            ) from None
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    if process.returncode:
        raise RuntimeError(
            "A child process of the export failed; the end of its error output: "
            f"{errors.strip()[-2000:]}"
        )
    return output


def write_with_tensorflow(
    write: Callable[..., None],
    model: keras.Model,
    folder: pathlib.Path,
    **settings: object,
) -> None:
    """Calls `write(model, folder=folder, **settings)` with the TensorFlow backend.

    On other backends the model is saved in a `.keras` file, and a child process loads
    the file and calls the function. The settings can be pickled.
    """
    if keras.backend.backend() == "tensorflow":
        write(model, folder=folder, **settings)
        return
    file = folder.with_suffix(".keras")
    model.save(file)
    call = pickle.dumps((str(file), write, {"folder": folder, **settings}))
    run_python(_LOAD_AND_CALL, base64.b64encode(call).decode())
