"""Imports Keras and TensorFlow without TensorFlow's log about the machine."""

import os

from keras_transformer_runtime.display import Display
from keras_transformer_runtime.packages import (
    DEPENDENCIES,
    require_extra,
    require_modules,
)
from keras_transformer_runtime.tensorflow_import import without_log


def import_recipes(verbose: int | None) -> None:
    """Imports `keras_transformer.recipe`, after a line says so."""
    with Display(verbose if verbose == 0 else 2).stage("Loading Keras and TensorFlow"):
        import_keras_quietly()
        import keras_transformer.recipe  # noqa: F401


def import_keras_quietly() -> None:
    """Imports Keras and TensorFlow, and hides the log of TensorFlow's C++ code.

    With the environment variable `TF_CPP_MIN_LOG_LEVEL=0`, nothing is hidden.
    """
    require_modules(DEPENDENCIES, "keras_transformer")
    require_extra("tensorflow", "The command")
    backend = os.environ.get("KERAS_BACKEND")
    if backend in ("jax", "torch"):
        require_extra(backend, f"KERAS_BACKEND={backend}")
    with without_log():
        import keras_transformer.text  # noqa: F401 (imports Keras and TensorFlow)
    if backend == "jax":
        from keras_transformer.backend.freed_memory import use_one_arena

        use_one_arena()
