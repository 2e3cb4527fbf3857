"""A whole training run by its options: parallel text in, a trained model out.

`Recipe` is the options, which `options.toml` keeps; `train` makes the run. The command
`keras-transformer train` is these two. What it does step by step, to change it for a
run of your own, is the section "The whole run" of `docs/training.md`.
"""

from importlib import import_module
from typing import Any

from keras_transformer.recipe.options import Recipe, read_options

_LAZY = {"Trained": "run", "train": "run"}

__all__ = ["Recipe", "Trained", "read_options", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"keras_transformer.recipe.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
