"""Runs a side in the process of the side."""

import ast
import importlib
import io
import pathlib
import tempfile
import tokenize
from typing import Any

import keras
import numpy as np
from training_sides.clocks import Clocks

from keras_transformer import evaluation
from tutorial_sides.task import Task, read

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Timer(keras.callbacks.Callback):
    """Seconds of the training steps of each epoch; stops after `minutes`."""

    def __init__(self, minutes: float | None):
        super().__init__()
        self.minutes = minutes
        self.epochs: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start, self.seconds = Clocks.now(), None

    def on_test_begin(self, logs=None):  # Validation begins after the last step.
        self.seconds = Clocks.now().seconds_since(self.start)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.seconds)
        if self.minutes is not None and sum(self.epochs) >= 60 * self.minutes:
            self.model.stop_training = True


def run(
    module: str,
    files: dict[str, tuple[str, str]],
    vocabulary_size: int,
    epochs: int,
    minutes: float | None,
) -> dict[str, Any]:
    """Trains and translates, and returns the figures of the side."""
    keras.utils.set_random_seed(1)
    side = importlib.import_module(f"tutorial_sides.{module}")
    timer = Timer(minutes)
    start = Clocks.now()
    with tempfile.TemporaryDirectory() as folder:
        trained = side.train(
            Task(
                files["train"],
                files["valid"],
                vocabulary_size,
                epochs,
                [timer],
                folder,
            )
        )
    trained_at = Clocks.now()
    sources, references = (read(file) for file in files["test"])
    translations = trained.translate(sources)
    translated_at = Clocks.now()
    targets = [np.asarray(targets) for _, targets in trained.batches]
    # The first epoch includes compilation.
    steady = timer.epochs[1:] or timer.epochs
    per_second = len(steady) / sum(steady)
    bleu = evaluation.bleu(translations, references, lowercase=True)
    return {
        "lines": lines_of_code(pathlib.Path(side.__file__).read_text("utf-8")),
        "parameters": trained.model.count_params(),
        "epochs": len(timer.epochs),
        "training_minutes": trained_at.seconds_since(start) / 60,
        "tokens_per_second": sum(map(np.count_nonzero, targets)) * per_second,
        "pairs_per_second": sum(len(x) for x in map(real_rows, targets)) * per_second,
        "translation_seconds": translated_at.seconds_since(trained_at),
        "bleu": bleu.score,
        "signature": bleu.signature,
        "taken_by_others": translated_at.taken_by_others(start),
        "example": translations[0],
    }


def real_rows(token_ids: np.ndarray) -> np.ndarray:
    """Returns the rows that are not padding."""
    return token_ids[token_ids.any(axis=1)]


def lines_of_code(source: str) -> int:
    """Returns the number of lines that are not empty, comments or docstrings."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
