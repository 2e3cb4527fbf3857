"""Settings of `config.json`, and the arguments of a model that they determine."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import keras

from keras_transformer.layers import (
    AttentionPattern,
    FeedForward,
    MultiHeadAttention,
    PositionalEncoding,
    PositionScheme,
)
from keras_transformer.layers.activations import get_activation
from keras_transformer.layers.residual import Residual
from keras_transformer.models import CausalLM, Seq2Seq, TextEncoder
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import (
    check_ints,
    check_one_of,
    check_positive,
    check_rates,
)

# Names of transformers, and the names of the same functions here. The first name of a
# function is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
# Arguments that do not change what a trained model computes.
_NO_DESIGN = {
    *("dropout", "stochastic_depth", "seed", "flash_attention", "rematerialize"),
    *("kernel_initializer", "bias_initializer", "embeddings_initializer"),
    *("max_length", "max_source_length", "max_target_length", "output_length_ratio"),
    *("pad_token_id", "start_token_id", "end_token_id", "add_start_token"),
    *("tokenizer", "source_tokenizer", "target_tokenizer", "vocabulary_size"),
    *("source_vocabulary_size", "target_vocabulary_size", "output_bias"),
    "use_pooler",
    *("kernel_regularizer", "bias_regularizer", "activity_regularizer"),
    *("kernel_constraint", "bias_constraint", "name", "trainable", "dtype"),
}
# Classes of which an argument of a model holds further arguments.
_OPTIONS: dict[str, type[keras.layers.Layer]] = {
    "attention_options": MultiHeadAttention,
    "feed_forward_options": FeedForward,
    "residual_options": Residual,
}
# Those that the model passes itself.
_PASSED = {
    *("num_heads", "intermediate_dim", "activation", "positions"),
    *("normalize_first", "layer_norm_epsilon"),
}


# A value of a setting or of an argument.
Value: TypeAlias = object
# The models that have families.
PublishedModel: TypeAlias = CausalLM | Seq2Seq | TextEncoder


class Setting(NamedTuple):
    """A setting of `config.json`.

    Attributes:
        default: the value that transformers uses if the file has none.
        argument: name of the argument of the model that the setting determines, with a
            dot before the name of an option, as in `"attention_options.key_dim"`.
            `None` = the family treats the setting by itself.
        check: function that raises `ValueError` for a wrong value.
        ours: dictionary of values of the setting and of the argument; `None` = both are
            equal.
    """

    default: Value
    argument: str | None
    check: Callable[..., None]
    ours: Mapping[str, Value] | None = None


def size(
    default: int | None, argument: str | None = None, *, least: int = 1
) -> Setting:
    """A number of at least `least`; `None` is allowed if it is the default."""
    check = functools.partial(check_ints, least, default is None)
    return Setting(default, argument, check)


def epsilon(default: float, argument: str = "layer_norm_epsilon") -> Setting:
    """A positive number."""
    return Setting(default, argument, check_positive)


def rate(default: float, argument: str | None) -> Setting:
    """A dropout rate."""
    return Setting(default, argument, check_rates)


def choice(default: Value, argument: str | None, ours: Mapping[str, Value]) -> Setting:
    """One of several values, each with a value of the argument."""
    return Setting(default, argument, _one_of(*ours), ours)


def flag(default: bool, argument: str | None = None) -> Setting:
    """A boolean."""
    return Setting(default, argument, _one_of(True, False))


def activation(default: str) -> Setting:
    """The activation of the feed-forward networks."""
    return choice(default, "activation", ACTIVATIONS)


def fixed(value: Value, *others: Value) -> Setting:
    """A setting that the models here do not have: only these values are allowed."""
    return Setting(value, None, _one_of(value, *others))


def token_id(default: int | None, argument: str | None = None) -> Setting:
    """The id of a special token; without `argument`, the family treats it by itself."""
    return Setting(default, argument, _check_token_id)


def _one_of(*values: Value) -> Callable[..., None]:
    return functools.partial(check_one_of, values)


def _check_token_id(**ids: Value) -> None:
    """Checks ids, of which a setting can have several in a list."""
    for name, value in ids.items():
        for each in value if isinstance(value, list) else [value]:
            check_ints(0, True, "", **{name: each})


def complete_config(settings: Mapping[str, Setting], config: Config) -> Config:
    """Checks the settings of a file, and adds the defaults; others are left out."""
    found = {name: config.get(name, each.default) for name, each in settings.items()}
    for name, setting in settings.items():
        setting.check(**{f"{name} in config.json": found[name]})
    return found


def arguments_of(settings: Mapping[str, Setting], config: Config) -> Config:
    """Converts complete settings to arguments of a model."""
    arguments: Config = {}
    for name, setting in settings.items():
        if setting.argument is None:
            continue
        value = config[name]
        value = value if setting.ours is None else setting.ours[str(value)]
        group, _, option = setting.argument.rpartition(".")
        target = arguments.setdefault(group, {}) if group else arguments
        target[option] = value
    return arguments


def config_of(settings: Mapping[str, Setting], design: Config) -> Config:
    """Converts all arguments of a model to settings.

    A value that no setting represents becomes the default of the setting, so that the
    arguments of the result differ from those of the model.
    """
    config = {name: setting.default for name, setting in settings.items()}
    for name, setting in settings.items():
        if setting.argument is None:
            continue
        group, _, option = setting.argument.rpartition(".")
        value = (design[group] if group else design)[option]
        if setting.ours is not None:
            theirs = [theirs for theirs, ours in setting.ours.items() if ours == value]
            value = theirs[0] if theirs else setting.default
        config[name] = value
    return config


def model_arguments(model: keras.Model) -> Config:
    """Returns the arguments with which a model of the same design can be created."""
    names = inspect.signature(type(model).__init__).parameters
    arguments = {
        name: getattr(model, name) for name in names if name not in ("self", "kwargs")
    }
    if isinstance(model, Seq2Seq) and not model.embeds_arrays:
        arguments["source_embedding"] = None
    return arguments


def complete_arguments(model_class: type[keras.Model], arguments: Config) -> Config:
    """Adds the defaults to arguments, and replaces functions by their names.

    The dictionaries of options contain the options of the layers that the model does
    not pass itself.
    """
    complete = {**_defaults(model_class), **arguments}
    function = get_activation(complete["activation"])
    complete["activation"] = _activation_name(function)
    complete["positions"] = complete["positions"] or PositionalEncoding()
    if model_class is CausalLM:
        complete["tie_embeddings"] = complete["tie_embeddings"] in (True, "all")
    if complete.get("num_decoder_layers", 0) is None:
        complete["num_decoder_layers"] = complete["num_layers"]
    for name, layer in _OPTIONS.items():
        options = {**_defaults(layer), **(complete[name] or {})}
        complete[name] = {n: v for n, v in options.items() if n not in _PASSED}
    attention = complete["attention_options"]
    width = complete["hidden_dim"] // complete["num_heads"]
    attention["key_dim"] = attention.get("key_dim") or width
    attention["value_dim"] = attention["value_dim"] or attention["key_dim"]
    heads = attention["num_key_value_heads"] or complete["num_heads"]
    attention["num_key_value_heads"] = heads
    return complete


def differences(ours: Config, theirs: Config) -> dict[str, tuple[Value, Value]]:
    """Returns the arguments of two complete designs that differ, with both values.

    The names of options contain those of their dictionaries. Arguments that do not
    change what a trained model computes are left out.
    """
    first, second = dict(_flat(ours)), dict(_flat(theirs))
    return {
        name: (first.get(name), second.get(name))
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    }


def _flat(arguments: Config) -> Iterator[tuple[str, Value]]:
    for name, value in arguments.items():
        if name in _NO_DESIGN:
            continue
        if name in _OPTIONS:
            yield from ((f"{name}.{option}", each) for option, each in _flat(value))
        elif isinstance(value, PositionScheme | AttentionPattern):
            yield name, type(value).__name__
            options = _flat(value.get_config())
            yield from ((f"{name}.{option}", each) for option, each in options)
        elif isinstance(value, tuple | list) and name == "positions":
            for number, each in enumerate(value):
                yield from _flat({f"{name}[{number}]": each})
        else:
            yield name, tuple(value) if isinstance(value, list) else value


def _defaults(function: Callable[..., object]) -> Config:
    parameters = inspect.signature(function).parameters.values()
    return {
        each.name: None if each.default is each.empty else each.default
        for each in parameters
        if each.kind is not each.VAR_KEYWORD
    }


def _activation_name(function: Callable[..., object]) -> str:
    names = [n for n in ACTIVATIONS.values() if get_activation(n) is function]
    return names[0] if names else getattr(function, "__name__", repr(function))
