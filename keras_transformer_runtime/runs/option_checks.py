"""Checks of the options of a `Recipe`, and the values that some of them may have."""

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, get_args

from keras_transformer_runtime.arguments import check_ints, check_rates

if TYPE_CHECKING:
    from keras_transformer_runtime.runs.recipe import Recipe

MODELS = ("seq2seq", "causal")
DOCUMENTS = ("file", "line", "paragraph", "none", "pairs")
TOKENIZERS = ("bpe", "unigram", "characters", "words", "bytes")
SUBWORDS = ("bpe", "unigram")
METRICS = (
    *("bleu", "chrf", "exact_match"),
    *("token_error_rate", "character_error_rate", "loss"),
)
POSITIONS = ("sinusoidal", "learned", "rotary", "relative", "alibi")
BLOCKS = ("plain", "modern")
SIZES = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")
# Options that only one kind of model has, each with the remedy.
_USE_TOKENIZER = "Use `tokenizer`."
_USE_SIZE = "Use `vocabulary_size`."
_SELECTED_BY_LOSS = "Its loss selects the weights."
ONLY_SEQ2SEQ = {
    "source_tokenizer": _USE_TOKENIZER,
    "target_tokenizer": _USE_TOKENIZER,
    "vocabularies": _USE_TOKENIZER,
    "source_vocabulary_size": _USE_SIZE,
    "target_vocabulary_size": _USE_SIZE,
    "metric": _SELECTED_BY_LOSS,
    "metric_every": _SELECTED_BY_LOSS,
    "bleu_tokenize": _SELECTED_BY_LOSS,
    "num_beams": _SELECTED_BY_LOSS,
}
ONLY_CAUSAL = ("documents", "separate_documents", "length")
# Options of parallel text and of running text.
ONLY_PARALLEL_TEXT = {
    "max_length": "Use `length`, the length of a window.",
    "subword_sampling": "Remove it.",
}
ONLY_RUNNING_TEXT = {
    "separate_documents": "Remove it.",
    "length": "Use `max_length`, the limit of a prompt and of an answer.",
}

# Types that an option of each type accepts, and their names in error messages.
_ACCEPTED: dict[Any, Any] = {
    str: (str, os.PathLike),
    bool: bool,
    int: Integral,
    float: Real,
    list[str]: (list, tuple),
    type(None): type(None),
}
_TYPE_NAMES: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "an int",
    float: "a number",
    list[str]: "a list of texts",
}


def check_types(values: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Checks the types of all options but the lists of files.

    Args:
        values: the options by name.
        hints: the type hints of `Recipe`.

    Raises:
        ValueError: if an option has another type.
    """
    for name in {*values} - {"train", "valid", "test"}:
        kinds = get_args(hints[name])
        if not kinds or hints[name] in _ACCEPTED:
            kinds = (hints[name],)
        value = values[name]
        if not isinstance(value, tuple(_ACCEPTED[kind] for kind in kinds)):
            raise ValueError(
                f"`{name}` must be {_TYPE_NAMES[kinds[0]]}; received "
                f"`{name}={value!r}`."
            )


def check_numbers(recipe: "Recipe") -> None:
    """Checks the ranges of the numbers.

    Raises:
    ValueError: if a number is out of range.
    """
    check_ints(
        1,
        max_length=recipe.max_length,
        micro_batches=recipe.micro_batches,
        devices=recipe.devices,
        model_parallel=recipe.model_parallel,
        workers=recipe.workers,
        metric_every=recipe.metric_every,
        num_beams=recipe.num_beams,
    )
    check_ints(
        1,
        optional=True,
        vocabulary_size=recipe.vocabulary_size,
        length=recipe.length,
        source_vocabulary_size=recipe.source_vocabulary_size,
        target_vocabulary_size=recipe.target_vocabulary_size,
        **{name: vars(recipe)[name] for name in SIZES},
        epochs=recipe.epochs,
        tokens_per_batch=recipe.tokens_per_batch,
        warmup_steps=recipe.warmup_steps,
        average=recipe.average,
        patience=recipe.patience,
        save_every=recipe.save_every,
    )
    if recipe.devices % recipe.model_parallel:
        raise ValueError(
            "`model_parallel` must divide the number of devices; received "
            f"`devices={recipe.devices}`, `model_parallel={recipe.model_parallel}`."
        )
    check_ints(0, optional=True, cooldown=recipe.cooldown)
    if not 0 <= recipe.seed < 2**32:
        raise ValueError(
            "`seed` must be from 0 to 2**32 - 1; received "
            f"`seed={recipe.seed!r}`. Pass another number."
        )
    check_rates(
        dropout=recipe.dropout or 0.0,
        attention_dropout=recipe.attention_dropout,
        label_smoothing=recipe.label_smoothing or 0.0,
    )
    if not 0.0 <= recipe.r_drop < float("inf"):
        raise ValueError(
            "`r_drop` must be a finite number of at least 0; received "
            f"`r_drop={recipe.r_drop!r}`."
        )
    if not 0.0 <= (recipe.subword_sampling or 0.0) <= 1.0:
        raise ValueError(
            "`subword_sampling` must be from 0 to 1; received "
            f"`subword_sampling={recipe.subword_sampling!r}`. 0.1 suits most texts."
        )
    rate = recipe.learning_rate
    if rate is not None and not 0.0 < rate < float("inf"):
        raise ValueError(
            "`learning_rate` must be a finite number above 0; received "
            f"`learning_rate={recipe.learning_rate!r}`."
        )
    if recipe.verbose not in (None, 0, 1, 2):
        raise ValueError(
            f"`verbose` must be 0, 1 or 2; received `verbose={recipe.verbose!r}`."
        )


def check_names(recipe: "Recipe") -> None:
    """Checks the options with a few possible values.

    Raises:
    ValueError: if a value is unknown.
    """
    tokenizers = ("tokenizer", "source_tokenizer", "target_tokenizer")
    choices: dict[str, tuple[str, ...]] = dict.fromkeys(tokenizers, TOKENIZERS)
    choices |= {"metric": METRICS, "positions": POSITIONS, "blocks": BLOCKS}
    choices |= {"model": MODELS, "documents": DOCUMENTS}
    choices["vocabularies"] = ("joint", "separate")
    for name, known in choices.items():
        value = vars(recipe)[name]
        if value is not None and value not in known:
            raise ValueError(
                f"`{name}` must be one of {', '.join(known)}; received "
                f"`{name}={value!r}`."
            )
    for side in ("source", "target"):
        for name in ("tokenizer", "vocabulary_size"):
            both, one = vars(recipe)[name], vars(recipe)[f"{side}_{name}"]
            if name == "tokenizer" and both and one and both != one:
                raise ValueError(
                    f"`{side}_{name}` must be `{name}` if both are given; received "
                    f"`{name}={both!r}`, `{side}_{name}={one!r}`. Remove one."
                )


def check_suits_model(recipe: "Recipe", given: Mapping[str, object]) -> None:
    """Checks that the options are those of the model and of its text.

    Args:
        recipe: the options.
        given: the options that differ from their defaults.

    Raises:
        ValueError: if an option is that of another model.
    """
    if recipe.model == "seq2seq":
        remedy = "Give `model='causal'` for a language model."
        _refuse(given, dict.fromkeys(ONLY_CAUSAL, remedy), "`model='seq2seq'`")
        return
    _refuse(given, ONLY_SEQ2SEQ, "`model='causal'`")
    if recipe.has_running_text:
        _refuse(given, ONLY_PARALLEL_TEXT, "running text")
    else:
        _refuse(given, ONLY_RUNNING_TEXT, "`documents='pairs'`")
    if recipe.separate_documents and recipe.documents == "none":
        raise ValueError(
            "`separate_documents` requires documents; received `separate_documents="
            "True` and `documents='none'`."
        )


def _refuse(
    given: Mapping[str, object], remedies: Mapping[str, str], circumstance: str
) -> None:
    for name, remedy in remedies.items():
        if name in given:
            raise ValueError(
                f"`{name}` must not be given with {circumstance}; received "
                f"`{name}={given[name]!r}`. {remedy}"
            )
