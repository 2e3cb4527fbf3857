"""A training run described by its options: from text to a trained model.

`Recipe` contains the options, which a run saves in `options.toml`. `train` executes the
run. The command `keras-transformer train` parses the options and calls `train`. The
section "The whole run" of `docs/training.md` has the same steps as code to adapt.

`Recipe` and `read_options` are available without Keras. `train` and its result import
Keras when they are first used.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from keras_transformer_runtime.runs.recipe import Recipe, read_options

if TYPE_CHECKING:
    from keras_transformer.recipe.result import (
        Figures,
        LanguageModelFigures,
        TrainingResult,
    )
    from keras_transformer.recipe.run import train

_MODULES = {
    "Figures": "result",
    "LanguageModelFigures": "result",
    "TrainingResult": "result",
    "train": "run",
}
_FORMER_NAMES = {"Trained": "TrainingResult"}

__all__ = [
    "Figures",
    "LanguageModelFigures",
    "Recipe",
    "TrainingResult",
    "read_options",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _FORMER_NAMES:
        former, name = name, _FORMER_NAMES[name]
        warnings.warn(
            f"`{former}` is deprecated and will be removed in the next version. Use "
            f"`{name}` instead.",
            FutureWarning,
            stacklevel=2,
        )
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"keras_transformer.recipe.{_MODULES[name]}")
    value: object = getattr(module, name)
    return value
