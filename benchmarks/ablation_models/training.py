"""Trains and evaluates a row."""

import dataclasses
import itertools
import math
import pathlib
import time
from typing import Any

import keras

from ablation_models.rows import Row
from ablation_models.tokens import MAX_LENGTH
from ablation_models.translating import translate
from keras_transformer import (
    Checkpoints,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    SentencePieceTokenizer,
    Tokenizer,
    WarmupInverseSquareRoot,
    evaluation,
)
from keras_transformer.dataset import ParallelDataset, parallel_dataset, read_pairs

DROPOUT = 0.3


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Options of the training of all rows."""

    train: list[str]
    valid: list[str]
    lowercase: bool
    vocabulary_size: int
    tokens_per_batch: int
    epochs: int
    learning_rate: float
    warmup_steps: int
    seed: int
    backend: str


class Text:
    """Tokenizer, training data and validation data of all rows."""

    def __init__(self, recipe: Recipe, folder: pathlib.Path):
        self.tokenizer = make_tokenizer(recipe, folder / "tokenizer.json")
        self.train = make_dataset(recipe.train, self.tokenizer, recipe, shuffle=True)
        self.valid = make_dataset(recipe.valid, self.tokenizer, recipe, shuffle=False)
        source, target = recipe.valid
        sources, references = zip(*read_pairs(source, target), strict=True)
        lengths = self.tokenizer.tokenize(list(sources)).row_lengths().numpy()
        fits = [int(length) < MAX_LENGTH for length in lengths]  # with the end token
        self.sources = list(itertools.compress(sources, fits))
        self.references = list(itertools.compress(references, fits))


def make_tokenizer(recipe: Recipe, path: pathlib.Path) -> Tokenizer:
    if not path.exists():
        SentencePieceTokenizer.train(
            recipe.train, recipe.vocabulary_size, lowercase=recipe.lowercase
        ).save(path)
    return Tokenizer.load(path)


def make_dataset(
    files: list[str], tokenizer: Tokenizer, recipe: Recipe, shuffle: bool
) -> ParallelDataset:
    return parallel_dataset(
        *files,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=recipe.tokens_per_batch,
        max_source_length=MAX_LENGTH,
        max_target_length=MAX_LENGTH,
        shuffle=shuffle,
        seed=recipe.seed,
    )


class EpochSeconds(keras.callbacks.Callback):
    """Logs the duration of each epoch without its validation.

    `seconds` is wall time. `processor_seconds` is the processor time of all threads of
    this process, which other processes affect less.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter(), time.process_time()

    def on_test_begin(self, logs=None):
        wall, processor = self.start
        self.seconds = time.perf_counter() - wall
        self.processor_seconds = time.process_time() - processor

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = self.seconds
        logs["processor_seconds"] = self.processor_seconds


def train(
    row: Row, recipe: Recipe, text: Text, checkpoints: pathlib.Path, verbose: int
) -> dict[str, Any]:
    """Trains a row, or resumes its training, and returns its figures."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(recipe.seed + row.seed)
    model = row.build(text.tokenizer, **{"dropout": DROPOUT, **row.settings})
    compile_model(model, row, recipe)
    history = model.fit(
        text.train.dataset,
        validation_data=text.valid.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # The dataset is shuffled already.
        verbose=verbose,
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            EpochSeconds(),
            # Rows are models of Keras as well; none of these callbacks has a state.
            Checkpoints(checkpoints, text.train, keep=1, callbacks=[]),
        ],
    ).history
    figures = {
        "parameters": model.count_params(),
        "history": {name: finite(values) for name, values in history.items()},
        "bleu": None,
    }
    if None not in figures["history"]["val_perplexity"]:
        figures["bleu"] = bleu(model, text, recipe.lowercase)
    return figures


def compile_model(model: keras.Model, row: Row, recipe: Recipe) -> None:
    schedule = WarmupInverseSquareRoot(
        row.rate * recipe.learning_rate, recipe.warmup_steps
    )
    model.compile(
        optimizer=keras.optimizers.Adam(
            schedule, beta_2=0.98, epsilon=1e-9, global_clipnorm=row.clipnorm
        ),
        loss=LabelSmoothedCrossEntropy(row.label_smoothing),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        **({"r_drop": row.r_drop} if row.r_drop else {}),
    )


def finite(values: list[float]) -> list[float | None]:
    """Replaces values that are not finite, which JSON cannot represent, by `None`."""
    return [float(value) if math.isfinite(value) else None for value in values]


def bleu(model: keras.Model, text: Text, lowercase: bool) -> float:
    translations = translate(model, text.tokenizer, text.sources)
    return evaluation.bleu(translations, text.references, lowercase).score
