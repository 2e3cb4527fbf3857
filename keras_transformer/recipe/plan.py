"""The options that a run chooses from its training text, each with its reason."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.dataset import ParallelDataset, TextDataset
from keras_transformer.models import PRESETS, GenerativeModel
from keras_transformer.recipe.optimizers import DEFAULTS
from keras_transformer.recipe.text_statistics import TextStatistics
from keras_transformer.training.lora import ALL
from keras_transformer_runtime.runs.contradictions import check_heads
from keras_transformer_runtime.runs.option_checks import SCHEDULES_TO_ZERO
from keras_transformer_runtime.runs.recipe import PlannedRecipe

# Numbers of pairs from which a larger preset is chosen.
SMALL_FROM, BASE_FROM = 100_000, 1_000_000
# Numbers of tokens from which a larger language model is chosen.
SMALL_LM_FROM, BASE_LM_FROM = 2_000_000, 20_000_000
LEAST_LENGTH, MOST_LENGTH = 16, 256  # of a window of running text
WINDOWS = 100  # in an epoch, at least
LEAST_TOKENS, MOST_TOKENS = 1024, 4096  # in a batch
UPDATES = 6.6  # times the square root of the tokens in an epoch
TUNING = 3  # times fewer updates of a trained model
CHARACTER_UPDATES = 5000  # at least, for a source of characters
LEAST_EPOCHS, MOST_EPOCHS = 5, 100
MOST_WARMUP = 2000  # batches
# Part of the batches, unless the rate of a new model falls as the inverse root.
SHORT_WARMUP = 10
NEW_RATE, TUNING_RATE = 0.512, 0.0512  # learning rates of Adam, times the width
SHORT_TARGET = 2.0  # words; such outputs are right or wrong
CLOSED = "words", "characters", "letters"  # tokenizers whose vocabulary is complete


class Choice(NamedTuple):
    """An option that the run has chosen."""

    option: str
    value: object
    reason: str  # as a phrase


class Plan:
    """The options of a run, while they are chosen."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = {**values}
        self.choices: list[Choice] = []
        self.longest: int | None = None  # sequence of the model to start from

    def __getitem__(self, option: str) -> Any:
        return self.values[option]

    def choose(self, option: str, value: object, reason: str) -> None:
        """Sets an option that is not given."""
        if self.values[option] is None:
            self.values[option] = value
            self.choices.append(Choice(option, value, reason))

    def recipe(self) -> PlannedRecipe:
        """Returns the complete options."""
        return PlannedRecipe.of(self.values)


def choose_columns(plan: Plan, names: Iterable[Sequence[str]]) -> None:
    """Notes which columns of the training text are used, if they are not given."""
    # They are not set: the other texts may have other columns, or a TSV file none.
    if plan["columns"] is None:
        for each in dict.fromkeys(tuple(each) for each in names if each):
            one = len(each) == 1
            reason = "the only column" if one else "the two columns, in their order"
            plan.choices.append(Choice("columns", " ".join(each), reason))


def choose_model(plan: Plan, pairs: int, target_tokens: int) -> None:
    """Chooses the size of the model, dropout and learning rate."""
    if plan["start_from"] is None:
        preset = _preset(pairs, SMALL_FROM, BASE_FROM)
        plan.choose("preset", preset, f"{pairs:,} pairs")
        _check_heads(plan)
        _choose_new_rate(plan)
    _choose_weight_decay(plan)
    few, many = 2_000_000, 20_000_000
    rate = 0.3 if target_tokens < few else 0.2 if target_tokens < many else 0.1
    plan.choose("dropout", rate, f"{target_tokens:,} target tokens")


def choose_language_model(plan: Plan, tokens: int) -> None:
    """Chooses the window, the size of a language model, dropout and learning rate."""
    if plan["documents"] != "pairs":
        length = 2 ** int(math.log2(max(tokens / WINDOWS, 1)))
        most = min(plan.longest or MOST_LENGTH, MOST_LENGTH)
        length = min(max(length, LEAST_LENGTH), most)
        plan.choose("length", length, f"{tokens:,} tokens")
    if plan["start_from"] is None:
        preset = _preset(tokens, SMALL_LM_FROM, BASE_LM_FROM)
        plan.choose("preset", preset, f"{tokens:,} tokens")
        _check_heads(plan)
        plan.choose("blocks", "modern", "lower loss at the same size")
        _choose_new_rate(plan)
    _choose_weight_decay(plan)
    plan.choose("dropout", 0.2 if tokens < SMALL_LM_FROM else 0.1, f"{tokens:,} tokens")


def _check_heads(plan: Plan) -> None:
    check_heads(*(plan[n] for n in ("preset", "hidden_dim", "num_heads", "positions")))


def _preset(size: int, small_from: int, base_from: int) -> str:
    """Returns the preset that suits the size of a text."""
    name = "tiny" if size < small_from else "small" if size < base_from else "base"
    return f"transformer_{name}"


def choose_fine_tuning(plan: Plan, model: GenerativeModel) -> None:
    """Chooses the options that depend on the trained model that a run starts from."""
    width = model.hidden_dim
    if plan["lora"] is None:
        _choose_rate(plan, TUNING_RATE / width, f"a tenth of a new model of {width}")
    else:
        _choose_rate(plan, NEW_RATE / width, f"updates of a model of width {width}")
        plan.choose("lora_alpha", 2 * plan["lora"], "twice the rank")
        plan.choose("lora_targets", [ALL], "closest to training all weights")
    options = model.get_config().get("attention_options") or {}
    plan.choose("dropout", model.dropout, "that of the model")
    rate = options.get("dropout", 0.0)
    plan.choose("attention_dropout", rate, "that of the model")
    limits = [getattr(model, name) for name in model.length_arguments]
    longest = min((limit for limit in limits if limit is not None), default=None)
    plan.longest = longest
    if longest is not None:
        share = 2 if plan["documents"] == "pairs" else 1  # a prompt and an answer
        plan.choose("max_length", longest // share, "the limit of the model")
    plan.choose("max_length", MOST_LENGTH, "the model has no limit")


def _choose_new_rate(plan: Plan) -> None:
    width = plan["hidden_dim"] or PRESETS[plan["preset"]]["hidden_dim"]
    _choose_rate(plan, NEW_RATE / width, f"model of width {width}")


def _choose_rate(plan: Plan, rate: float, reason: str) -> None:
    name = plan["optimizer"]
    reason += "" if name == "adam" else f", {name}"
    plan.choose("learning_rate", round(rate * DEFAULTS[name].rate, 6), reason)


def _choose_weight_decay(plan: Plan) -> None:
    defaults = DEFAULTS[plan["optimizer"]]
    if defaults.weight_decay is not None:
        plan.choose("weight_decay", defaults.weight_decay, plan["optimizer"])


def choose_batches(plan: Plan, tokens: int) -> None:
    """Chooses the size of the batches."""
    size = 2 ** round(math.log2(tokens / 100))  # 70 to 140 batches in an epoch
    size = max(min(max(size, LEAST_TOKENS), MOST_TOKENS), plan["length"] or 1)
    plan.choose("tokens_per_batch", size, f"{tokens:,} tokens in an epoch")


def choose_metric(plan: Plan, text: TextStatistics) -> None:
    """Chooses the metric that selects the model."""
    words = text.target.words / len(text.sample)
    if words <= SHORT_TARGET or plan["target_tokenizer"] in CLOSED:
        plan.choose("metric", "exact_match", f"targets of {words:.1f} words")
    plan.choose("metric", "bleu", f"targets of {words:.1f} words")


def choose_schedule(plan: Plan, data: ParallelDataset | TextDataset) -> None:
    """Chooses the length of the run and the course of the learning rate."""
    batches = data.batches_per_epoch
    tokens = batches * plan["tokens_per_batch"]
    updates = UPDATES * math.sqrt(tokens)
    if plan["source_tokenizer"] in ("characters", "letters"):
        updates = max(updates, CHARACTER_UPDATES)
    if plan["start_from"] is not None:
        updates /= TUNING
    epochs = min(max(round(updates / batches), LEAST_EPOCHS), MOST_EPOCHS)
    reason = f"{epochs * batches:,} updates"
    if plan["steps"] is not None:
        epochs = math.ceil(plan["steps"] / batches)
        reason = f"{plan['steps']:,} updates, {batches:,} in an epoch"
    plan.choose("epochs", epochs, reason)
    _choose_rates(plan, batches)
    plan.choose("save_every", min(500, batches), "also every 5 minutes")


def _choose_rates(plan: Plan, batches: int) -> None:
    """Chooses when the learning rate rises and falls, and the epochs of the mean."""
    epochs, schedule = plan["epochs"], plan["schedule"]
    total = plan["steps"] or epochs * batches
    if schedule in SCHEDULES_TO_ZERO:
        plan.choose("cooldown", 0, f"{schedule} falls to 0")
        rising = max(1, min(MOST_WARMUP, total // SHORT_WARMUP))
        plan.choose("warmup_steps", rising, f"of {total:,} batches")
        plan.choose("average", max(epochs // 4, 1), "a quarter of the epochs")
        return
    plan.choose("cooldown", epochs // 4, "a quarter of the epochs")
    cooldown = min(plan["cooldown"], epochs)
    before = min(max(epochs - cooldown, 1) * batches, total)
    is_long = schedule == "inverse_sqrt" and plan["start_from"] is None
    share = 0.62 if is_long else 1 / SHORT_WARMUP
    rising = max(1, min(MOST_WARMUP, int(share * before)))
    plan.choose("warmup_steps", rising, f"of {before:,} batches before the cool-down")
    plan.choose("average", max(cooldown, 1), "the epochs of the cool-down")
