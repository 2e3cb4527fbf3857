"""The options that the run of a classifier chooses from its data, and its model."""

import math
from collections.abc import Sequence

import numpy as np

from keras_transformer.models import (
    PRESETS,
    TextClassifier,
    TextEncoder,
    TokenClassifier,
)
from keras_transformer.recipe.label_data import (
    AnyClassifier,
    LabelData,
    class_counts,
    class_names,
    texts_of,
)
from keras_transformer.recipe.loading import load_starting_encoder
from keras_transformer.recipe.model import make_positions
from keras_transformer.recipe.optimizers import DEFAULTS
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.text_statistics import SideStatistics
from keras_transformer.recipe.tokenizers import suitable_tokenizer, train_tokenizer
from keras_transformer.text import Tokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.labels.tagged_words import tag_scheme
from keras_transformer_runtime.runs.label_recipe import (
    LabelRecipe,
    PlannedLabelRecipe,
)
from keras_transformer_runtime.runs.option_checks import SIZES

SMALL_FROM = 20_000  # texts, from which a larger preset is chosen
MOST_LENGTH = 512  # tokens of a text
LENGTHS_OF_ALL = 0.99  # part of the texts that fit in the maximum length
SHALLOW = 2  # blocks of an encoder for few texts
UPDATES, TUNING_UPDATES = 1500, 500
LEAST_EPOCHS, MOST_EPOCHS = 3, 30
NEW_RATE, TUNING_RATE = 0.128, 0.02  # learning rates, times the width
SHORT_WARMUP = 10  # part of the batches
UNEQUAL = 3  # ratio of the examples of two classes, from which macro F1 is chosen
# Options of vocabularies that such a run does not have.
_OF_TOKENIZERS: Config = {
    "normalization": "nmt_nfkc",
    "character_coverage": 1.0,
    "byte_fallback": False,
    "user_defined_symbols": [],
    "model": "seq2seq",
}


def make_plan(recipe: LabelRecipe) -> Plan:
    """Returns the options of a run while they are chosen."""
    return Plan({**recipe.values(), **_OF_TOKENIZERS})


def make_label_tokenizer(plan: Plan, data: LabelData) -> Tokenizer:
    """Chooses a tokenizer that is not given, and trains it on the training data."""
    texts = texts_of(data.train)
    side = SideStatistics.of(texts)
    plan.choose("tokenizer", *suitable_tokenizer("source", side, len(texts)))
    return train_tokenizer(
        plan, "vocabulary_size", plan["tokenizer"], texts, texts, scale=1
    )


def choose_model_options(plan: Plan, data: LabelData, encoder: TextEncoder) -> None:
    """Chooses the rest of the options for a new encoder, or for a trained one."""
    rows = len(data.train)
    is_new = plan["start_from"] is None
    plan.choose("batch_size", 32 if rows >= 1000 else 16, f"{rows:,} examples")
    batches = math.ceil(rows / plan["batch_size"])
    updates = UPDATES if is_new else TUNING_UPDATES
    epochs = min(max(round(updates / batches), LEAST_EPOCHS), MOST_EPOCHS)
    plan.choose("epochs", epochs, f"{epochs * batches:,} updates")
    rate = (NEW_RATE if is_new else TUNING_RATE) / encoder.hidden_dim
    name = plan["optimizer"]
    kind = "new" if is_new else "trained"
    reason = f"a {kind} model of width {encoder.hidden_dim}"
    plan.choose("learning_rate", round(rate * DEFAULTS[name].rate, 6), reason)
    decay = DEFAULTS[name].weight_decay
    if decay is not None:
        plan.choose("weight_decay", decay, name)
    total = plan["epochs"] * batches
    plan.choose("warmup_steps", max(1, total // SHORT_WARMUP), f"of {total:,} batches")
    plan.choose("average", max(plan["epochs"] // 4, 1), "a quarter of the epochs")
    plan.choose("save_every", min(500, batches), "also every 5 minutes")
    if plan["task"] == "classify":
        pooling = "pooler" if encoder.use_pooler else "mean"
        plan.choose("pooling", pooling, "of the encoder" if not is_new else "the usual")
    plan.choose("metric", *_metric(plan, data))


def _metric(plan: Plan, data: LabelData) -> tuple[str, str]:
    names = class_names(data.train)
    if plan["task"] == "tag":
        if tag_scheme([names]) is not None:
            return "entity_f1", "the tags are those of spans"
        return "accuracy", "the tags are those of words"
    counts = [count for count in class_counts(data.train).values() if count]
    if plan["multi_label"] or max(counts) > UNEQUAL * min(counts):
        return "macro_f1", "the classes are unequal"
    return "accuracy", "the classes are about equal"


def new_encoder(plan: Plan, data: LabelData, tokenizer: Tokenizer) -> TextEncoder:
    """Chooses the size of a new encoder, and returns it."""
    rows = len(data.train)
    size = "small" if rows >= SMALL_FROM else "tiny"
    plan.choose("preset", f"transformer_{size}", f"{rows:,} examples")
    if size == "tiny":
        plan.choose("num_layers", SHALLOW, "few examples: it learns earlier")
    plan.choose("positions", "sinusoidal", "the paper")
    plan.choose("dropout", 0.3 if rows < SMALL_FROM else 0.1, f"{rows:,} examples")
    plan.choose("max_length", *_longest(data, tokenizer))
    sizes: Config = {n: plan[n] or PRESETS[plan["preset"]][n] for n in SIZES}
    return TextEncoder(
        **sizes,
        tokenizer=tokenizer,
        max_length=plan["max_length"],
        num_segments=2 if getattr(data.train, "second_texts", None) else 0,
        positions=make_positions(plan["positions"], plan["max_length"]),
        dropout=plan["dropout"],
        dtype=plan["dtype"],
    )


def _longest(data: LabelData, tokenizer: Tokenizer) -> tuple[int, str]:
    """Returns the maximum length of a text in tokens, and the reason."""
    texts = texts_of(data.train)
    lengths = tokenizer.tokenize(texts).row_lengths().numpy()
    each = len(texts) // len(data.train)  # 2 of a pair
    lengths = lengths.reshape(-1, each).sum(axis=1) + 1 + each
    fitting = int(np.quantile(lengths, LENGTHS_OF_ALL, method="higher"))
    length = min(max(fitting, 16), MOST_LENGTH)
    part = np.mean(lengths <= length)
    return length, f"{part:.0%} of the texts fit; the longest has {lengths.max():,}"


def trained_encoder(plan: Plan) -> TextEncoder:
    """Loads the encoder of `start_from`, with the options of the plan."""
    encoder = load_starting_encoder(plan["start_from"])
    if encoder.tokenizer is None:
        raise ValueError(
            "`start_from` must be an encoder with a tokenizer; received "
            f"`start_from={plan['start_from']!r}`, which has none."
        )
    plan.choose("dropout", encoder.dropout, "that of the encoder")
    limit = encoder.max_length
    if limit is None:
        plan.choose("max_length", MOST_LENGTH, "the encoder has no limit")
    else:
        plan.choose("max_length", min(limit, MOST_LENGTH), "that of the encoder")
        if plan["max_length"] > limit:
            raise ValueError(
                f"`max_length` must be at most {limit}, that of the encoder of "
                f"`start_from`; received `max_length={plan['max_length']}`."
            )
    names = ("dropout", "max_length", "dtype")
    config = {**encoder.get_config(), **{name: plan[name] for name in names}}
    changed = TextEncoder.from_config(config)
    changed.set_weights(encoder.get_weights())
    return changed


def make_classifier(
    recipe: PlannedLabelRecipe, encoder: TextEncoder, names: Sequence[str]
) -> AnyClassifier:
    """Returns the classifier of a run, not compiled."""
    options: Config = {"dropout": recipe.dropout, "dtype": recipe.dtype}
    if recipe.task == "tag":
        return TokenClassifier(encoder, names, **options)
    return TextClassifier(
        encoder,
        names,
        multi_label=recipe.multi_label,
        pooling=recipe.pooling,
        **options,
    )
