"""The model of a run: a new or a trained one, with its optimizer, loss and metrics."""

import pathlib
import warnings

import keras

from keras_transformer.layers import (
    AlibiBias,
    LearnedPositionalEncoding,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.models import GenerativeModel, Seq2Seq
from keras_transformer.recipe.folder import latest_position
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.recipe.option_checks import SIZES
from keras_transformer.recipe.recipe import PlannedRecipe
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    WarmupInverseSquareRoot,
)
from keras_transformer.training.token_trainer import TokenTrainer


def new_model(tokenizers: Tokenizers, recipe: PlannedRecipe) -> Seq2Seq:
    """Returns a new model.

    Args:
        tokenizers: the tokenizers of source and target.
        recipe: the options.

    Returns:
        The model, not compiled.
    """
    assert recipe.preset is not None
    sizes = {name: vars(recipe)[name] for name in SIZES}
    return Seq2Seq.from_preset(
        recipe.preset,
        source_tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        normalize_first=True,
        dropout=recipe.dropout,
        attention_options={"dropout": recipe.attention_dropout},
        positions=_positions(recipe),
        dtype=recipe.dtype,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
        **{name: size for name, size in sizes.items() if size is not None},
    )


def _positions(recipe: PlannedRecipe) -> PositionScheme:
    """Returns the position scheme of the recipe."""
    if recipe.positions == "learned":
        return LearnedPositionalEncoding(recipe.max_length)
    schemes = {
        "sinusoidal": PositionalEncoding,
        "rotary": RotaryEmbedding,
        "relative": RelativePositionBias,
        "alibi": AlibiBias,
    }
    return schemes[recipe.positions]()


def load_initial_model(init: str) -> GenerativeModel:
    """Loads the trained model that a run starts from.

    Args:
        init: `recipe.init`.

    Raises:
        ValueError: if it is not a trainable model with tokenizers.
    """
    is_address = "://" in init
    trained = (
        Seq2Seq.from_preset(init)
        if is_address
        else load_trained_model(pathlib.Path(init))
    )
    if not isinstance(trained, TokenTrainer) or trained.source_tokenizer is None:
        raise ValueError(
            "`init` must be a model that can be trained, such as a `Seq2Seq`, with "
            f"tokenizers; received `init={init!r}`, which contains {trained!r}. Train "
            "without `init`, or start from another model."
        )
    return trained


def with_options(trained: GenerativeModel, recipe: PlannedRecipe) -> GenerativeModel:
    """Returns a trained model with the dropout, lengths and dtype of a recipe.

    Args:
        trained: the model that the run starts from.
        recipe: the options.

    Raises:
        ValueError: if `max_length` exceeds the number of positions of the model.
    """
    positions = getattr(trained, "positions", None)
    longest: int = getattr(positions, "max_length", None) or recipe.max_length
    if longest < recipe.max_length:
        raise ValueError(
            f"`max_length` must be at most {longest}, the number of positions of the "
            f"model of `init`; received `max_length={recipe.max_length}`."
        )
    options = trained.get_config().get("attention_options") or {}
    return _rebuilt(
        trained,
        dropout=recipe.dropout,
        attention_options={**options, "dropout": recipe.attention_dropout},
        dtype=recipe.dtype,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
    )


def compile_model(
    model: GenerativeModel, recipe: PlannedRecipe, batches_per_epoch: int
) -> None:
    """Compiles the model with the optimizer, loss and metrics of the recipe.

    Args:
        model: the model before the first epoch.
        recipe: the options.
        batches_per_epoch: int, number of batches of the training data.
    """
    total_steps = recipe.epochs * batches_per_epoch
    cooldown_steps = min(recipe.cooldown, recipe.epochs) * batches_per_epoch
    if latest_position(recipe.output) is None:
        _warn_of_long_warmup(recipe, total_steps - cooldown_steps)
    schedule = WarmupInverseSquareRoot(
        recipe.learning_rate,
        recipe.warmup_steps,
        total_steps=total_steps,
        cooldown_steps=cooldown_steps,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(recipe.label_smoothing),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        micro_batches=recipe.micro_batches,
        r_drop=recipe.r_drop,
    )


def _warn_of_long_warmup(recipe: PlannedRecipe, steps: int) -> None:
    """Warns if the learning rate falls before it reaches its peak.

    Args:
        recipe: the options.
        steps: the number of batches before the learning rate falls.
    """
    if steps < recipe.warmup_steps:
        warnings.warn(
            f"`warmup_steps={recipe.warmup_steps}` is greater than {steps}, the number "
            "of batches before the learning rate falls: it does not reach "
            f"`learning_rate={recipe.learning_rate}`. Decrease `warmup_steps` or "
            "`cooldown`, or increase `epochs`.",
            stacklevel=2,
        )


def in_float32(model: GenerativeModel) -> GenerativeModel:
    """Returns a float32 model with the weights of a model.

    Args:
        model: a model of any dtype policy.

    Returns:
        `model` itself if it is float32; otherwise a new model, not compiled.
    """
    if model.dtype_policy.name == "float32":
        return model
    return _rebuilt(model, dtype="float32")


def _rebuilt(model: GenerativeModel, **changes: object) -> GenerativeModel:
    """Returns a model with a changed configuration and the same weights."""
    rebuilt = type(model).from_config({**model.get_config(), **changes})
    rebuilt.set_weights(model.get_weights())
    return rebuilt
