"""Starts Keras and TensorFlow without what TensorFlow tells of the machine."""

import contextlib
import functools
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# Levels are I, W, E and F. TF_CPP_MIN_LOG_LEVEL has no power over these.
_START_UP = re.compile(rb"I\d{4} |WARNING: All log messages before absl|To enable the ")


def starts_quietly(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command begin with Keras and TensorFlow loaded.

    What TensorFlow's C++ code logs is hidden unless the environment has
    `TF_CPP_MIN_LOG_LEVEL`: errors that stop a command are Python's.

    Args:
        command: what Typer calls when the arguments are right.

    Returns:
        A function with the same parameters.
    """

    @functools.wraps(command)
    def started(*args: Any, **options: Any) -> None:
        if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
            with _without_start_up_lines():
                for name in ("keras_transformer.models", "keras_transformer.text"):
                    importlib.import_module(name)
        command(*args, **options)

    return started


@contextlib.contextmanager
def _without_start_up_lines() -> Iterator[None]:
    """Keeps them from standard error, and passes on all else when it is done."""
    shown = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(shown, 2)
            os.close(shown)
            caught.seek(0)
            for line in caught:
                if not _START_UP.match(line):
                    os.write(2, line)
