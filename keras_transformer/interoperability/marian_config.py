"""Reads `config.json` of a Marian model: the arguments of a `Seq2Seq`."""

from collections.abc import Callable
from typing import Any

from keras_transformer.export.marian_format import (
    ACTIVATIONS,
    DEFAULT_SETTINGS,
    LAYER_NORM_EPSILON,
)
from keras_transformer.layers import PositionalEncoding
from keras_transformer.types import Config

SIZES = (
    "vocab_size",
    "d_model",
    "decoder_layers",
    "decoder_vocab_size",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    "max_position_embeddings",
)


def complete_config(config: Config) -> Config:
    """Checks the content of `config.json` and adds the defaults.

    Args:
        config: content of the file.

    Returns:
        The settings of `DEFAULT_SETTINGS`, without the others.

    Raises:
        ValueError: if the settings do not describe an encoder-decoder of Marian, or a
            value is out of range.
    """
    defaults = DEFAULT_SETTINGS.items()
    config = {name: config.get(name, default) for name, default in defaults}
    shared = config["share_encoder_decoder_embeddings"]
    if shared or config["decoder_vocab_size"] is None:
        config["decoder_vocab_size"] = config["vocab_size"]
    _require(config, "model_type", "'marian'", lambda name: name == "marian")
    _require(config, "is_encoder_decoder", "true", bool)
    for name in ("add_final_layer_norm", "normalize_before", "normalize_embedding"):
        _require(config, name, "false, for post-norm", lambda value: not value)
    for name in SIZES:
        _require(config, name, "a positive int below 2**31", _is_size)
    for name in ("activation_dropout", "attention_dropout", "dropout"):
        _require(config, name, "a number in [0, 1)", _is_rate)
    expected = f"one of {', '.join(map(repr, ACTIVATIONS))}"
    _require(config, "activation_function", expected, _is_known_activation)
    for name in ("attention_heads", "ffn_dim"):
        same = config[f"encoder_{name}"]
        _require(config, f"decoder_{name}", f"{same}, as in the encoder", same.__eq__)
    heads = config["encoder_attention_heads"]
    expected = f"divisible by {heads}, `encoder_attention_heads`"
    _require(config, "d_model", expected, lambda width: width % heads == 0)
    pad = config["pad_token_id"]
    expected = f"the `pad_token_id`, {pad}, which is the start token of Marian"
    _require(config, "decoder_start_token_id", expected, lambda start: start == pad)
    return config


def seq2seq_arguments(config: Config) -> Config:
    """Converts the settings to the arguments of a `Seq2Seq`.

    Args:
        config: settings from `complete_config`.

    Returns:
        Keyword arguments, without the tokenizers.
    """
    sizes = {
        "source_vocabulary_size": config["vocab_size"],
        "target_vocabulary_size": config["decoder_vocab_size"],
    }
    tying = "target" if config["tie_word_embeddings"] else "none"
    if config["share_encoder_decoder_embeddings"]:
        sizes = {"vocabulary_size": config["vocab_size"]}
        tying = "all" if config["tie_word_embeddings"] else "none"
    max_length = config["max_position_embeddings"]
    return {
        **sizes,
        "num_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "hidden_dim": config["d_model"],
        "intermediate_dim": config["encoder_ffn_dim"],
        "num_heads": config["encoder_attention_heads"],
        "tie_embeddings": tying,
        "scale_embeddings": bool(config["scale_embedding"]),
        "output_bias": True,
        "normalize_first": False,
        "dropout": config["dropout"],
        "activation": ACTIVATIONS[config["activation_function"]],
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "positions": PositionalEncoding(interleaved=False),
        "attention_options": {"dropout": config["attention_dropout"]},
        "feed_forward_options": {"dropout": config["activation_dropout"]},
        "max_source_length": max_length,
        "max_target_length": max_length,
    }


def _require(
    config: Config, name: str, expected: str, is_valid: Callable[[Any], object]
) -> None:
    """Raises `ValueError` unless `is_valid` returns `True` for a setting."""
    if is_valid(config[name]) is not True:
        raise ValueError(
            f"`{name}` in config.json must be {expected}; received "
            f"`{name}={config[name]!r}`. Only models that transformers' "
            "`MarianMTModel` computes are supported."
        )


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_rate(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 1


def _is_known_activation(value: object) -> bool:
    return isinstance(value, str) and value in ACTIVATIONS
