"""Checks that the options of a new run do not contradict each other."""

from typing import NoReturn

from keras_transformer_runtime.presets import PRESETS
from keras_transformer_runtime.runs.option_checks import SCHEDULES_TO_ZERO, SUBWORDS
from keras_transformer_runtime.runs.recipe import Recipe, default_of
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS

BYTES = 256 + len(SPECIAL_TOKENS)  # size of the vocabulary of bytes
# Options of subwords alone.
_OF_SUBWORDS = (
    *("subword_sampling", "normalization", "character_coverage", "byte_fallback"),
    "user_defined_symbols",
)


def check_agree(recipe: Recipe) -> None:
    """Raises `ValueError` if two options of a new run contradict each other."""
    _check_numbers(recipe)
    if recipe.schedule in SCHEDULES_TO_ZERO and recipe.cooldown:
        _refuse(
            recipe,
            "`cooldown` must be 0, or not given, with a `schedule` that falls to 0 at "
            "the end of the run",
            *("cooldown", "schedule"),
            remedy="`schedule='constant'` with `cooldown` falls in the last epochs.",
        )
    if recipe.r_drop and recipe.dropout == recipe.attention_dropout == 0:
        _refuse(
            recipe,
            "`r_drop` must be 0 without dropout, as it compares two predictions that "
            "differ by their dropout",
            *("r_drop", "dropout", "attention_dropout"),
        )
    every = 1 if recipe.metric == "loss" else recipe.metric_every
    if recipe.patience is not None and recipe.patience < every:
        _refuse(
            recipe,
            "`patience` must be at least `metric_every`, the epochs between two values "
            "of the metric",
            *("patience", "metric_every"),
        )
    check_heads(recipe.preset, recipe.hidden_dim, recipe.num_heads, recipe.positions)
    if recipe.start_from is None:
        _check_tokenizers(recipe)


def check_one_length(recipe: Recipe) -> None:
    """Raises `ValueError` if a run has a number of epochs and one of batches."""
    if recipe.epochs is not None and recipe.steps is not None:
        _refuse(
            recipe,
            "`epochs` must not be given with `steps`",
            *("epochs", "steps"),
            remedy="Remove one of them, also from a file of options.",
        )


def _check_numbers(recipe: Recipe) -> None:
    """Checks the numbers that must not be greater than others."""
    for name, limit, remedy in (
        ("warmup_steps", "steps", "The learning rate would not reach its peak."),
        ("cooldown", "epochs", ""),
        ("average", "epochs", ""),
        ("metric_every", "epochs", "The metric would not be computed."),
        ("length", "tokens_per_batch", "A batch has one window or more."),
    ):
        number, most = vars(recipe)[name], vars(recipe)[limit]
        is_given = number != default_of(name, recipe.model)
        if is_given and number is not None and most is not None and number > most:
            text = f"`{name}` must be at most `{limit}`"
            _refuse(recipe, text, name, limit, remedy=remedy)


def check_heads(
    preset: str | None, hidden_dim: int | None, num_heads: int | None, positions: object
) -> None:
    """Raises `ValueError` if no preset has a width that the heads can share.

    Args:
        preset: the preset, which has the sizes that are `None`; `None` if it is not yet
            chosen.
        hidden_dim: the width of the model.
        num_heads: the number of heads.
        positions: the position encoding.
    """
    sizes = [PRESETS[name] for name in ([preset] if preset else PRESETS)]
    widths = {
        (hidden_dim or int(each["hidden_dim"]), num_heads or int(each["num_heads"]))
        for each in sizes
    }
    if not any(width % heads == 0 for width, heads in widths):
        fact, multiple = "divide the width of the model", 1
    elif positions == "rotary" and not any(w % (2 * heads) == 0 for w, heads in widths):
        fact = "give each head an even width for `positions='rotary'`"
        multiple = 2
    else:
        return
    given = {"preset": preset, "hidden_dim": hidden_dim, "num_heads": num_heads}
    received = [f"`{n}={value!r}`" for n, value in given.items() if value is not None]
    if hidden_dim is None:
        found = sorted({str(width) for width, _ in widths}, key=int)
        received.append(f"{'a width' if preset else 'presets'} of {', '.join(found)}")
    heads = num_heads or min(heads for _, heads in widths)
    raise ValueError(
        f"`num_heads` must {fact}; received {', '.join(received)}. Choose another "
        f"`num_heads`, or a `hidden_dim` that is a multiple of {multiple * heads}."
    )


def _check_tokenizers(recipe: Recipe) -> None:
    """Checks the options of vocabularies that one tokenizer has and another has not."""
    if recipe.model == "causal":
        kinds = {"tokenizer": recipe.tokenizer}
    else:
        kinds = {
            "source_tokenizer": recipe.source_tokenizer or recipe.tokenizer,
            "target_tokenizer": recipe.target_tokenizer or recipe.tokenizer,
        }
    if all(kind == "bytes" for kind in kinds.values()):
        _refuse_size_of_bytes(recipe, "vocabulary_size")
    for side in ("source", "target"):
        if kinds.get(f"{side}_tokenizer") == "bytes":
            _refuse_size_of_bytes(recipe, f"{side}_vocabulary_size")
    if all(kind is not None and kind not in SUBWORDS for kind in kinds.values()):
        for name in _OF_SUBWORDS:
            _refuse_given(recipe, name, "tokenizers without subwords")
    sizes = ("source_vocabulary_size", "target_vocabulary_size")
    given = [name for name in sizes if vars(recipe)[name] is not None]
    if recipe.vocabularies == "joint":
        for name in given:
            _refuse_given(
                recipe, name, "`vocabularies='joint'`", "Use `vocabulary_size`."
            )
        if None not in kinds.values() and len({*kinds.values()}) > 1:
            _refuse(
                recipe,
                "`vocabularies` must be 'separate' unless source and target have the "
                "same tokenizer",
                *("vocabularies", *kinds),
            )


def _refuse_size_of_bytes(recipe: Recipe, name: str) -> None:
    if vars(recipe)[name] not in (None, BYTES):
        text = f"`{name}` must be {BYTES}, or not given, for bytes"
        _refuse(recipe, text, name)


def _refuse_given(recipe: Recipe, name: str, what: str, remedy: str = "") -> None:
    """Raises `ValueError` if an option differs from its default."""
    if vars(recipe)[name] != default_of(name, recipe.model):
        text = f"`{name}` must not be given with {what}"
        _refuse(recipe, text, name, remedy=remedy or "Remove it.")


def _refuse(recipe: Recipe, text: str, *names: str, remedy: str = "") -> NoReturn:
    values = [f"`{name}={vars(recipe)[name]!r}`" for name in names]
    raise ValueError(f"{text}; received {', '.join(values)}. {remedy}".rstrip())
