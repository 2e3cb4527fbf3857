"""The model of a run: a new or a trained one, with its optimizer, loss and metrics."""

import math
import warnings
from collections.abc import Sequence

from keras_transformer.layers import (
    AlibiBias,
    LearnedPositionalEncoding,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.models import PRESETS, CausalLM, GenerativeModel, Seq2Seq
from keras_transformer.recipe.loading import load_starting_model
from keras_transformer.recipe.optimizers import (
    cooldown_steps,
    make_optimizer,
    make_schedule,
    total_steps,
)
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    enable_lora,
)
from keras_transformer.types import Config
from keras_transformer_runtime.runs.folder import latest_position
from keras_transformer_runtime.runs.option_checks import SIZES
from keras_transformer_runtime.runs.recipe import PlannedRecipe


def new_seq2seq(tokenizers: Tokenizers, recipe: PlannedRecipe) -> Seq2Seq:
    """Returns a new `Seq2Seq`, not compiled."""
    assert recipe.preset is not None
    return Seq2Seq.from_preset(
        recipe.preset,
        source_tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        **_options(recipe, Seq2Seq, recipe.max_length),
    )


def new_causal_lm(
    tokenizers: Tokenizers, recipe: PlannedRecipe, context: int, add_start_token: bool
) -> CausalLM:
    """Returns a new `CausalLM`, not compiled."""
    assert recipe.preset is not None
    return CausalLM.from_preset(
        recipe.preset,
        tokenizer=tokenizers.target,
        add_start_token=add_start_token,
        **_options(recipe, CausalLM, context),
    )


def _options(recipe: PlannedRecipe, cls: type[GenerativeModel], length: int) -> Config:
    """Returns the arguments that all kinds of new models have."""
    assert recipe.preset is not None
    sizes = {name: vars(recipe)[name] for name in SIZES}
    attention_options: Config = {"dropout": recipe.attention_dropout}
    options: Config = {
        **_length_arguments(cls, length),
        "dropout": recipe.dropout,
        "attention_options": attention_options,
        "positions": make_positions(recipe.positions, length),
        "dtype": recipe.dtype,
    }
    if recipe.blocks == "modern":
        attention_options["use_bias"] = False
        # A gated network has three matrices in place of two.
        width = PRESETS[recipe.preset]["intermediate_dim"] * 2 / 3
        options |= {
            "intermediate_dim": 8 * math.ceil(width / 8),
            "activation": "silu",
            "feed_forward_options": {"gated": True, "use_bias": False},
            "residual_options": {"normalization": "rms"},
        }
    return options | {name: size for name, size in sizes.items() if size is not None}


def _length_arguments(cls: type[GenerativeModel], length: int) -> dict[str, int]:
    """Returns the limits of the lengths, by the arguments of a model."""
    return dict.fromkeys(cls.length_arguments, length)


def make_positions(name: str, length: int) -> PositionScheme:
    """Returns a position scheme by the value of the option `positions`."""
    if name == "learned":
        return LearnedPositionalEncoding(length)
    schemes = {
        "sinusoidal": PositionalEncoding,
        "rotary": RotaryEmbedding,
        "relative": RelativePositionBias,
        "alibi": AlibiBias,
    }
    return schemes[name]()


def load_initial_model(
    start: str,
    model_class: type[Seq2Seq] | type[CausalLM],
    kind: str,
    languages: Sequence[str] | None,
) -> GenerativeModel:
    """Loads the trained model that a run starts from.

    Raises `ValueError` if it is of another class than that of `model=kind`, or has no
    tokenizers.
    """
    trained = load_starting_model(start, languages)
    if not isinstance(trained, model_class):
        raise ValueError(
            f"`start_from` must be a {model_class.__name__} for `model={kind!r}`; "
            f"received `start_from={start!r}`, which is a {type(trained).__name__}."
        )
    if trained.source_tokenizer is None:
        raise ValueError(
            f"`start_from` must be a model with tokenizers; received `start_from="
            f"{start!r}`, a {type(trained).__name__} without. Train without "
            "`start_from`, or start from another model."
        )
    return trained


def with_options(
    trained: GenerativeModel, recipe: PlannedRecipe, length: int
) -> GenerativeModel:
    """Returns a trained model with the dropout and dtype of a recipe.

    Its limits of lengths become longer if the recipe has a greater one.
    """
    longest = positions_of(trained) or length
    if longest < length:
        option = "length" if recipe.has_running_text else "max_length"
        raise ValueError(
            f"`{option}` must be at most {longest}, the number of positions of the "
            f"model of `start_from`; received `{option}={vars(recipe)[option]}`."
        )
    options = trained.get_config().get("attention_options") or {}
    limits = {name: getattr(trained, name) for name in trained.length_arguments}
    return _rebuilt(
        trained,
        dropout=recipe.dropout,
        attention_options={**options, "dropout": recipe.attention_dropout},
        dtype=recipe.dtype,
        **{name: limit and max(limit, length) for name, limit in limits.items()},
    )


def positions_of(model: GenerativeModel) -> int | None:
    """Returns the number of learned positions of a model; `None` = no limit."""
    limit: int | None = getattr(getattr(model, "positions", None), "max_length", None)
    return limit


def adapt(model: GenerativeModel, recipe: PlannedRecipe) -> None:
    """Adds the low-rank updates of the recipe, if it has some."""
    if recipe.lora is not None:
        assert recipe.lora_targets is not None
        enable_lora(model, recipe.lora, recipe.lora_alpha, recipe.lora_targets)


def trained_parameters(model: GenerativeModel) -> int:
    """Returns the number of parameters that are trained."""
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def compile_model(
    model: GenerativeModel, recipe: PlannedRecipe, batches_per_epoch: int
) -> None:
    """Compiles the model with the optimizer, loss and metrics of the recipe."""
    if latest_position(recipe.output) is None:
        steps = total_steps(recipe, batches_per_epoch)
        _warn_of_long_warmup(recipe, steps - cooldown_steps(recipe, batches_per_epoch))
    pad = model.pad_token_id
    model.compile(
        optimizer=make_optimizer(recipe, make_schedule(recipe, batches_per_epoch)),
        loss=LabelSmoothedCrossEntropy(recipe.label_smoothing, pad),
        metrics=[MaskedTokenAccuracy(pad_token_id=pad), Perplexity(pad_token_id=pad)],
        micro_batches=recipe.micro_batches,
        r_drop=recipe.r_drop,
    )


def _warn_of_long_warmup(recipe: PlannedRecipe, steps: int) -> None:
    """Warns if the learning rate falls, after some steps, before it is at its peak."""
    if steps < recipe.warmup_steps:
        unit = "epochs" if recipe.steps is None else "steps"
        warnings.warn(
            f"`warmup_steps={recipe.warmup_steps}` is greater than {steps}, the number "
            "of batches before the learning rate falls: it does not reach "
            f"`learning_rate={recipe.learning_rate}`. Decrease `warmup_steps` or "
            f"`cooldown`, or increase `{unit}`.",
            stacklevel=2,
        )


def in_float32(model: GenerativeModel) -> GenerativeModel:
    """Returns a float32 model with the weights of a model, or the model itself."""
    if model.dtype_policy.name == "float32":
        return model
    return _rebuilt(model, dtype="float32")


def _rebuilt(model: GenerativeModel, **changes: object) -> GenerativeModel:
    """Returns a model with a changed configuration and the same weights."""
    rebuilt = type(model).from_config({**model.get_config(), **changes})
    rebuilt.set_weights(model.get_weights())
    return rebuilt
