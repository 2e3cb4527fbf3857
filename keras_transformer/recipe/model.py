"""The model of a run: a new one or a trained one, and how it learns."""

import pathlib
import warnings
from typing import Any

import keras

from keras_transformer.models import Seq2Seq
from keras_transformer.recipe.folder import goes_on, saved_position
from keras_transformer.recipe.loading import load
from keras_transformer.recipe.options import Recipe
from keras_transformer.text import SentencePieceTokenizer, Tokenizer
from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    WarmupInverseSquareRoot,
)


def make_model(recipe: Recipe) -> Seq2Seq:
    """Makes the model as it is before the first epoch.

    Args:
        recipe: the options. A new vocabulary, or the trained model to begin with, is
            written to the folder of the run, and read from there when it goes on.

    Returns:
        The model, not compiled.

    Raises:
        ValueError: if the folder holds a run that these options do not go on with, or
            `recipe.init` another model than a `Seq2Seq` with tokenizers.
    """
    path = pathlib.Path(recipe.output, "tokenizer.json")
    is_there = goes_on(recipe)
    path.parent.mkdir(parents=True, exist_ok=True)
    if recipe.init:
        initial = path.with_name("initial.keras")
        if is_there:
            return keras.saving.load_model(initial, compile=False)
        model = _trained_model(recipe.init, recipe)
        model.save(initial)
        return model
    if is_there:
        return _new_model(Tokenizer.load(path), recipe)
    tokenizer = SentencePieceTokenizer.train(
        recipe.train,
        vocabulary_size=recipe.vocabulary_size,
        lowercase=recipe.lowercase,
        normalization=recipe.normalization,
        character_coverage=recipe.character_coverage,
    )
    tokenizer.save(path)
    return _new_model(tokenizer, recipe)


def _new_model(tokenizer: Tokenizer, recipe: Recipe) -> Seq2Seq:
    return Seq2Seq.from_preset(
        recipe.preset,
        source_tokenizer=tokenizer,
        normalize_first=True,
        dropout=recipe.dropout,
        attention_options={"dropout": recipe.attention_dropout},
        dtype=recipe.dtype,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
    )


def _trained_model(init: str, recipe: Recipe) -> Seq2Seq:
    """The model of a file, with the recipe's dropout, lengths and numbers."""
    is_far = "://" in init
    trained = Seq2Seq.from_preset(init) if is_far else load(pathlib.Path(init))
    if not isinstance(trained, Seq2Seq) or trained.source_tokenizer is None:
        raise ValueError(
            "`init` must hold a `Seq2Seq` with tokenizers; received "
            f"`init={init!r}`, which holds {trained!r}. Train without it, or begin "
            "with another model."
        )
    longest = getattr(trained.positions, "max_length", None) or recipe.max_length
    if longest < recipe.max_length:
        raise ValueError(
            f"`max_length` must be at most {longest}, as many positions as the model "
            f"of `init` has; received `max_length={recipe.max_length}`."
        )
    options = trained.get_config()["attention_options"]
    return _rebuilt(
        trained,
        dropout=recipe.dropout,
        attention_options={**options, "dropout": recipe.attention_dropout},
        dtype=recipe.dtype,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
    )


def compile_model(model: Seq2Seq, recipe: Recipe, batches_per_epoch: int) -> None:
    """Gives the model its optimizer, loss and metrics.

    Args:
        model: from `make_model`.
        recipe: the options.
        batches_per_epoch: int, those of the training data.
    """
    total = recipe.epochs * batches_per_epoch
    cooldown = min(recipe.cooldown, recipe.epochs) * batches_per_epoch
    if saved_position(recipe.output) is None:
        _warn_of_a_long_warmup(recipe, total - cooldown)
    schedule = WarmupInverseSquareRoot(
        recipe.learning_rate,
        recipe.warmup_steps,
        total_steps=total,
        cooldown_steps=cooldown,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(recipe.label_smoothing),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        micro_batches=recipe.micro_batches,
        r_drop=recipe.consistency,
    )


def _warn_of_a_long_warmup(recipe: Recipe, steps: int) -> None:
    """With little text the learning rate would never get anywhere, without a word."""
    if steps < recipe.warmup_steps:
        warnings.warn(
            f"`warmup_steps={recipe.warmup_steps}` is more than the {steps} batches "
            "before the learning rate falls: it never rises to "
            f"`learning_rate={recipe.learning_rate}`. Give fewer `warmup_steps`, a "
            "shorter `cooldown` or more `epochs`.",
            stacklevel=2,
        )


def in_float32(model: Seq2Seq) -> Seq2Seq:
    """Returns the model if it is float32, or one with its weights, not compiled."""
    if model.dtype_policy.name == "float32":
        return model
    return _rebuilt(model, dtype="float32")


def _rebuilt(model: Seq2Seq, **changes: Any) -> Seq2Seq:
    """A model of other configuration and the same weights, not compiled."""
    rebuilt = Seq2Seq.from_config({**model.get_config(), **changes})
    rebuilt.set_weights(model.get_weights())
    return rebuilt
