"""Imports Keras and TensorFlow without TensorFlow's log about the machine."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from keras_transformer_runtime.packages import (
    DEPENDENCIES,
    require_extra,
    require_modules,
)

# Lines that TensorFlow 2.21 prints at import with any TF_CPP_MIN_LOG_LEVEL: those of
# level INFO, and the hints next to them.
_LOG = re.compile(rb"I\d{4} |WARNING: All log messages before absl|To enable the ")


def import_keras_quietly() -> None:
    """Imports Keras and TensorFlow, and hides the log of TensorFlow's C++ code.

    With the environment variable `TF_CPP_MIN_LOG_LEVEL=0`, nothing is hidden.
    """
    require_modules(DEPENDENCIES, "keras_transformer")
    require_extra("tensorflow", "The command")
    backend = os.environ.get("KERAS_BACKEND")
    if backend in ("jax", "torch"):
        require_extra(backend, f"KERAS_BACKEND={backend}")
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with contextlib.nullcontext() if level == "0" else _without_log():
        import keras_transformer.text  # noqa: F401 (imports Keras and TensorFlow)
    if backend == "jax":
        from keras_transformer.backend.freed_memory import use_one_arena

        use_one_arena()


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow and its operations for texts, and hides its log."""
    require_extra("tensorflow", "The engine of SavedModels")
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with contextlib.nullcontext() if level == "0" else _without_log():
        import tensorflow_text  # noqa: F401 (imports TensorFlow)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Removes the lines of `_LOG` from standard error.

    The lines are written to a temporary file, and the others to standard error at the
    end, also after an exception. If the process is aborted, they are lost.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file:
                if not _LOG.match(line):
                    os.write(2, line)
