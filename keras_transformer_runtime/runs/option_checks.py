"""Checks of the options of a `Recipe`, and the values that some of them may have."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Real
from typing import get_args

from keras_transformer_runtime.arguments import (
    check_ints,
    check_numbers,
    check_one_of,
)
from keras_transformer_runtime.engines.model_description import language_pair

MODELS = ("seq2seq", "causal")
DOCUMENTS = ("file", "line", "paragraph", "none", "pairs")
TOKENIZERS = ("bpe", "unigram", "characters", "letters", "words", "bytes")
SUBWORDS = ("bpe", "unigram")
METRICS = (
    *("bleu", "chrf", "exact_match"),
    *("token_error_rate", "character_error_rate", "loss"),
)
POSITIONS = ("sinusoidal", "learned", "rotary", "relative", "alibi")
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
OPTIMIZERS = ("adam", "adamw", "lion", "muon", "adafactor", "sgd")
SCHEDULES = ("inverse_sqrt", "cosine", "linear", "constant")
SCHEDULES_TO_ZERO = ("cosine", "linear")
BLOCKS = ("plain", "modern")
ENGINES = ("keras", "ctranslate2")
FORMATS = ("both", "saved_model", "ctranslate2")
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
    "valid_engine": _SELECTED_BY_LOSS,
    "num_beams": _SELECTED_BY_LOSS,
    "languages": "Remove it.",
    "members": "Only models from text to text decode as an ensemble.",
}
ONLY_CAUSAL = dict.fromkeys(
    ("documents", "separate_documents", "length"),
    "Give `model='causal'` for a language model.",
)
# Options that `start_from` takes from the trained model.
_OF_START = dict.fromkeys(
    (
        *("preset", *SIZES, "positions", "blocks", "tokenizer", "source_tokenizer"),
        *("target_tokenizer", "vocabularies", "vocabulary_size"),
        *("source_vocabulary_size", "target_vocabulary_size", "normalization"),
        *("character_coverage", "byte_fallback", "user_defined_symbols"),
    ),
    "Remove one of them, also from a file of options.",
)
# Options that require a trained model, and those that require `lora`.
_OF_LORA = {"lora": "Give `start_from`, the trained model to adapt."}
_WITH_RANK = dict.fromkeys(
    ("lora_alpha", "lora_targets"), "Give `lora`, the rank of the updates."
)
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
_ACCEPTED: dict[object, tuple[type, ...]] = {
    str: (str, os.PathLike),
    bool: (bool,),
    int: (Integral,),
    float: (Real,),
    list[str]: (list, tuple),
    type(None): (type(None),),
}
_TYPE_NAMES: dict[object, str] = {
    str: "a text",
    bool: "true or false",
    int: "an int",
    float: "a number",
    list[str]: "a list of texts",
}

# The checks of values, each with the options that it checks. Those that are `None` are
# chosen later, or are off.
_COUNTS = (
    *("max_length", "length", "micro_batches", "devices", "model_parallel", "workers"),
    *("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size", *SIZES),
    *("epochs", "steps", "tokens_per_batch", "warmup_steps", "average", "patience"),
    *("save_every", "metric_every", "num_beams", "lora", "members"),
)
_CHECKS: tuple[tuple[Callable[..., None], tuple[str, ...]], ...] = (
    (partial(check_ints, 1), _COUNTS),
    (partial(check_ints, 0), ("cooldown",)),
    (partial(check_numbers, 0, 2**32 - 1), ("seed",)),
    (partial(check_numbers, above=0), ("learning_rate", "clip_norm", "lora_alpha")),
    (partial(check_numbers, 0), ("r_drop", "weight_decay")),
    (
        partial(check_numbers, 0, below=1),
        ("dropout", "attention_dropout", "label_smoothing"),
    ),
    (
        partial(check_numbers, 0, 1, remedy="0.1 suits most texts."),
        ("subword_sampling",),
    ),
    (partial(check_one_of, (0, 1, 2)), ("verbose",)),
    (partial(check_one_of, MODELS), ("model",)),
    (partial(check_one_of, DOCUMENTS), ("documents",)),
    (
        partial(check_one_of, TOKENIZERS),
        ("tokenizer", "source_tokenizer", "target_tokenizer"),
    ),
    (partial(check_one_of, ("joint", "separate")), ("vocabularies",)),
    (partial(check_one_of, METRICS), ("metric",)),
    (partial(check_one_of, POSITIONS), ("positions",)),
    (partial(check_one_of, BLOCKS), ("blocks",)),
    (partial(check_one_of, OPTIMIZERS), ("optimizer",)),
    (partial(check_one_of, SCHEDULES), ("schedule",)),
    (partial(check_one_of, ENGINES), ("valid_engine",)),
    (partial(check_one_of, FORMATS), ("export_format",)),
)


def check_types(values: Mapping[str, object], hints: Mapping[str, object]) -> None:
    """Checks the types of all options but the lists of files, by their type hints."""
    for name in {*values} - {"train", "valid", "test"}:
        kinds = get_args(hints[name])
        if not kinds or hints[name] in _ACCEPTED:
            kinds = (hints[name],)
        value = values[name]
        if not any(isinstance(value, _ACCEPTED[kind]) for kind in kinds):
            raise ValueError(
                f"`{name}` must be {_TYPE_NAMES[kinds[0]]}; received "
                f"`{name}={value!r}`."
            )


def check_values(values: Mapping[str, object]) -> None:
    """Checks that each option has one of its possible values."""
    for check, names in _CHECKS:
        check(optional=True, **{name: values[name] for name in names})
    languages = values["languages"]
    if isinstance(languages, list | tuple):
        language_pair(languages)
    for side in ("source", "target"):
        both, one = values["tokenizer"], values[f"{side}_tokenizer"]
        if both and one and both != one:
            raise ValueError(
                f"`{side}_tokenizer` must be `tokenizer` if both are given; received "
                f"`tokenizer={both!r}`, `{side}_tokenizer={one!r}`. Remove one."
            )


def check_suits_model(
    values: Mapping[str, object], given: Mapping[str, object]
) -> None:
    """Checks that the options are those of the model and of its text.

    `given` has the options that differ from their defaults.
    """
    if values["model"] == "seq2seq":
        _refuse(given, ONLY_CAUSAL, "`model='seq2seq'`")
    else:
        _refuse(given, ONLY_SEQ2SEQ, "`model='causal'`")
        if values["documents"] == "pairs":
            _refuse(given, ONLY_RUNNING_TEXT, "`documents='pairs'`")
        else:
            _refuse(given, ONLY_PARALLEL_TEXT, "running text")
    if values["separate_documents"] and values["documents"] == "none":
        raise ValueError(
            "`separate_documents` requires documents; received `separate_documents="
            "True` and `documents='none'`."
        )
    if values["start_from"] is not None:
        _refuse(given, _OF_START, "`start_from`, whose model determines it")
    else:
        _refuse(given, _OF_LORA, "a new model")
    if values["lora"] is None:
        _refuse(given, _WITH_RANK, "all weights trained")
    if values["members"] == 1:
        _refuse(given, {"distill": "Give `members`, such as 3."}, "one model")
    elif not values["distill"] and values["export_format"] == "ctranslate2":
        raise ValueError(
            "`export_format` must not be 'ctranslate2' with several `members`, since "
            "CTranslate2 has no ensembles; received `members="
            f"{values['members']}`. Give `distill`, which trains one model."
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
