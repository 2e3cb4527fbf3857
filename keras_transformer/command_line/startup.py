"""Imports Keras and TensorFlow without TensorFlow's log about the machine."""

import contextlib
import importlib
import os
import re
import tempfile
from collections.abc import Iterator

from keras_transformer.packages import DEPENDENCIES, require_extra, require_modules

# Lines of level INFO and the hints that TF_CPP_MIN_LOG_LEVEL does not suppress.
_LOG = re.compile(rb"I\d{4} |WARNING: All log messages before absl|To enable the ")


def import_keras_quietly() -> None:
    """Imports Keras and TensorFlow, and hides the log of TensorFlow's C++ code.

    Imports nothing if `TF_CPP_MIN_LOG_LEVEL` is set. Errors that stop a command are
    Python exceptions, which are not hidden.

    Raises:
        ModuleNotFoundError: if a package that every command requires is missing.
    """
    require_modules(DEPENDENCIES, "keras_transformer")
    backend = os.environ.get("KERAS_BACKEND")
    if backend in ("jax", "torch"):
        require_extra(backend, f"KERAS_BACKEND={backend}")
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with _filtered_stderr():
        for name in ("keras_transformer.models", "keras_transformer.text"):
            importlib.import_module(name)


@contextlib.contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Withholds standard error, and writes it without the lines of `_LOG` at exit."""
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as withheld:
        os.dup2(withheld.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            withheld.seek(0)
            for line in withheld:
                if not _LOG.match(line):
                    os.write(2, line)
