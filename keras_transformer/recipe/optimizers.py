"""The optimizer of a run, and the schedule of its learning rate."""

import math
from typing import NamedTuple, Protocol, cast

import keras

from keras_transformer.training import WarmupDecay, WarmupInverseSquareRoot
from keras_transformer.training.schedules import Decay
from keras_transformer.types import Options

# Names of weights without weight decay: biases, the gains of normalizations, and
# embeddings, also those of positions. Keras looks for them in the names of variables.
UNDECAYED = ("bias", "beta", "gamma", "scale", "embeddings")
# Weights that Muon leaves to Adam, besides those that are not matrices and the
# embeddings: the biases of heads `(num_heads, key_dim)`, and an output layer. Keras
# looks for them in the paths of variables.
_NOT_OF_MUON = ("bias$", "^output/")


class TrainingOptions(Protocol):
    """The options of a run that an optimizer and its schedule depend on."""

    @property
    def epochs(self) -> int:
        """Number of epochs."""

    @property
    def steps(self) -> int | None:
        """Number of batches, in place of that of `epochs`."""

    @property
    def optimizer(self) -> str:
        """Name of the optimizer."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""

    @property
    def schedule(self) -> str:
        """Name of the schedule."""

    @property
    def warmup_steps(self) -> int:
        """Number of batches in which the learning rate rises."""

    @property
    def cooldown(self) -> int:
        """Number of final epochs in which the learning rate falls."""

    @property
    def weight_decay(self) -> float | None:
        """Weight decay of matrices."""

    @property
    def clip_norm(self) -> float | None:
        """Maximum norm of the gradient."""


class OptimizerDefaults(NamedTuple):
    """The options that suit an optimizer."""

    rate: float  # times the learning rate of Adam
    weight_decay: float | None


DEFAULTS = {
    "adam": OptimizerDefaults(1, None),
    "adamw": OptimizerDefaults(1, 0.01),
    "lion": OptimizerDefaults(0.3, 0.03),  # the product of both is that of AdamW
    "muon": OptimizerDefaults(1, 0.01),
    "adafactor": OptimizerDefaults(5, None),  # relative to the size of a weight
    "sgd": OptimizerDefaults(50, None),
}


def make_optimizer(
    recipe: TrainingOptions,
    schedule: keras.optimizers.schedules.LearningRateSchedule,
) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a recipe."""
    decay = recipe.weight_decay or None
    options: Options = {"weight_decay": decay, "global_clipnorm": recipe.clip_norm}
    optimizer: keras.optimizers.Optimizer
    match recipe.optimizer:
        case "adam" | "adamw":  # they differ in their default weight decay alone
            optimizer = keras.optimizers.Adam(
                schedule, beta_2=0.98, epsilon=1e-9, **options
            )
        case "lion":
            optimizer = keras.optimizers.Lion(schedule, **options)
        case "muon":
            optimizer = keras.optimizers.Muon(
                schedule,
                adam_beta_2=0.98,
                epsilon=1e-9,
                adam_weight_decay=decay,
                exclude_layers=[*_NOT_OF_MUON],
                **options,
            )
        case "adafactor":
            optimizer = keras.optimizers.Adafactor(
                schedule, relative_step=False, **options
            )
        case _:
            optimizer = keras.optimizers.SGD(
                schedule, momentum=0.9, nesterov=True, **options
            )
    if decay is not None:
        optimizer.exclude_from_weight_decay(var_names=[*UNDECAYED])
    return optimizer


def describe_weight_decay(model: keras.Model) -> str:
    """Returns how many parameters of a model have weight decay, as a phrase."""
    counts = {True: 0, False: 0}
    for weight in model.trainable_weights:
        is_undecayed = any(name in weight.name for name in UNDECAYED)
        counts[is_undecayed] += math.prod(weight.shape)
    return (
        f"of {counts[False]:,} parameters, not of {counts[True]:,} in embeddings, "
        "biases and normalizations"
    )


def total_steps(recipe: TrainingOptions, batches_per_epoch: int) -> int:
    """Returns the number of batches of a run."""
    return recipe.steps or recipe.epochs * batches_per_epoch


def cooldown_steps(recipe: TrainingOptions, batches_per_epoch: int) -> int:
    """Returns the number of batches of the last epochs, in which the rate falls."""
    before = (recipe.epochs - min(recipe.cooldown, recipe.epochs)) * batches_per_epoch
    return max(total_steps(recipe, batches_per_epoch) - before, 0)


def make_schedule(
    recipe: TrainingOptions, batches_per_epoch: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate schedule of a recipe."""
    options: Options = {
        "total_steps": total_steps(recipe, batches_per_epoch),
        "cooldown_steps": cooldown_steps(recipe, batches_per_epoch),
    }
    rate, rising = recipe.learning_rate, recipe.warmup_steps
    if recipe.schedule == "inverse_sqrt":
        return WarmupInverseSquareRoot(rate, rising, **options)
    return WarmupDecay(rate, rising, cast(Decay, recipe.schedule), **options)
