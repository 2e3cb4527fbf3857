"""What every side receives and returns, and the size of its model."""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from keras_transformer_runtime.presets import PRESETS

PRESET = "transformer_tiny"
SIZE = PRESETS[PRESET]


class Task(NamedTuple):
    """Files of text, source and target, and the duration of the training."""

    train: tuple[str, str]
    valid: tuple[str, str]
    vocabulary_size: int
    epochs: int
    callbacks: list[Any]
    checkpoints: str


class Trained(NamedTuple):
    """A trained model, its training batches `(inputs, targets)`, and its translator.

    Padding of the targets is 0.
    """

    model: Any
    batches: Iterable[Any]
    translate: Callable[[list[str]], list[str]]


def read(path: str) -> list[str]:
    return pathlib.Path(path).read_text("utf-8").splitlines()
