"""Imports Keras and TensorFlow without TensorFlow's log about the machine."""

import contextlib
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator

from keras_transformer.backend.compiled_code import keep_compiled_code
from keras_transformer.backend.freed_memory import use_one_arena

# Lines that TensorFlow 2.21 prints at import with any TF_CPP_MIN_LOG_LEVEL: those of
# level INFO, and the hints next to them.
_LOG = re.compile(rb"I\d{4} |WARNING: All log messages before absl|To enable the ")


def import_keras_quietly() -> None:
    """Imports Keras and TensorFlow, and hides the log of TensorFlow's C++ code.

    Imports nothing if `TF_CPP_MIN_LOG_LEVEL` is 0, or if Keras is imported. XLA keeps
    the code that it compiles for later commands of this user, and JAX the memory of a
    step. Errors that stop a command are Python exceptions or lines of level FATAL,
    which are not hidden.

    Raises:
        ModuleNotFoundError: if a package that every command requires is missing.
    """
    from keras_transformer_runtime.packages import (
        DEPENDENCIES,
        require_extra,
        require_modules,
    )

    require_modules(DEPENDENCIES, "keras_transformer")
    backend = os.environ.get("KERAS_BACKEND")
    if backend in ("jax", "torch"):
        require_extra(backend, f"KERAS_BACKEND={backend}")
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "keras" in sys.modules:
        return
    keep_compiled_code()
    if backend == "jax":
        use_one_arena()
    if level == "0":
        return
    with _filtered_stderr():
        for name in ("keras_transformer.models", "keras_transformer.text"):
            importlib.import_module(name)


@contextlib.contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Removes the lines of `_LOG` from standard error.

    A child process filters the lines, so that those before a crash are written.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        _write_other_lines(reading)
        os._exit(0)
    os.close(reading)
    stderr = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(stderr, 2)  # The child reads the end of the pipe, and ends.
        os.close(stderr)


def _write_other_lines(reading: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, to both processes
    with open(reading, "rb") as lines:
        for line in lines:
            if not _LOG.match(line):
                os.write(2, line)
