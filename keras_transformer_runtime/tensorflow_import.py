"""Imports TensorFlow without its log about the machine."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

from keras_transformer_runtime.packages import require_extra

# Lines that TensorFlow 2.21 prints at import with any TF_CPP_MIN_LOG_LEVEL: those of
# level INFO, and the hints next to them.
_LOG = re.compile(rb"I\d{4} |WARNING: All log messages before absl|To enable the ")

# Threads share standard error, and one of them at a time replaces it.
_STANDARD_ERROR = threading.RLock()


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow and its operations for texts, and hides its log."""
    require_extra("tensorflow", "The engine of SavedModels")
    with without_log():
        import tensorflow_text  # noqa: F401 (imports TensorFlow)


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Removes the lines of `_LOG` from standard error.

    With the environment variable `TF_CPP_MIN_LOG_LEVEL=0`, nothing is removed.

    The lines are written to a temporary file, and the others to standard error at the
    end, also after an exception. If the process is aborted, they are lost.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0":
        yield
        return
    with _STANDARD_ERROR, tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
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
