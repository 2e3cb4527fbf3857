"""From `config.json` of a Marian model to the arguments of a `Seq2Seq`, and back."""

import math
from typing import Any

import keras

from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import Seq2Seq

# What transformers' `MarianConfig` takes where the file says nothing.
DEFAULTS = {
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "add_final_layer_norm": False,
    "attention_dropout": 0.0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": None,
    "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layers": 12,
    "eos_token_id": 0,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "model_type": None,
    "normalize_before": False,
    "normalize_embedding": False,
    "pad_token_id": 58100,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "vocab_size": 58101,
}
ACTIVATIONS = {
    "gelu": keras.activations.gelu,
    "relu": keras.activations.relu,
    "sigmoid": keras.activations.sigmoid,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
    "tanh": keras.activations.tanh,
}
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
MARIAN_EPSILON = 1e-5


def complete_config(config: dict[str, Any]) -> dict[str, Any]:
    """Adds what `config.json` leaves out, and checks the rest.

    Args:
        config: its content.

    Returns:
        The settings of `DEFAULTS` alone.

    Raises:
        ValueError: if it describes something else than an encoder-decoder of Marian,
            or with values that make no sense.
    """
    config = {name: config.get(name, value) for name, value in DEFAULTS.items()}
    shared = config["share_encoder_decoder_embeddings"]
    if shared or config["decoder_vocab_size"] is None:
        config["decoder_vocab_size"] = config["vocab_size"]
    _require(config, "model_type", "'marian'", lambda name: name == "marian")
    _require(config, "is_encoder_decoder", "true", bool)
    for name in ("add_final_layer_norm", "normalize_before", "normalize_embedding"):
        _require(config, name, "false, for post-norm", lambda value: not value)
    for name in SIZES:
        _require(config, name, "a positive int", _is_size)
    for name in ("activation_dropout", "attention_dropout", "dropout"):
        _require(config, name, "a number in [0, 1)", _is_rate)
    wanted = f"one of {', '.join(map(repr, ACTIVATIONS))}"
    _require(config, "activation_function", wanted, _is_known_activation)
    for name in ("attention_heads", "ffn_dim"):
        same = config[f"encoder_{name}"]
        _require(config, f"decoder_{name}", f"{same}, as in the encoder", same.__eq__)
    heads = config["encoder_attention_heads"]
    wanted = f"divisible by {heads}, `encoder_attention_heads`"
    _require(config, "d_model", wanted, lambda width: width % heads == 0)
    pad = config["pad_token_id"]
    wanted = f"the `pad_token_id`, {pad}, with which Marian starts"
    _require(config, "decoder_start_token_id", wanted, lambda start: start == pad)
    return config


def seq2seq_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """Makes the arguments of a `Seq2Seq`, except its tokenizers.

    Args:
        config: from `complete_config`.

    Returns:
        Keyword arguments.
    """
    sizes = {
        "source_vocabulary_size": config["vocab_size"],
        "target_vocabulary_size": config["decoder_vocab_size"],
    }
    tying = "target" if config["tie_word_embeddings"] else "none"
    if config["share_encoder_decoder_embeddings"]:
        sizes = {"vocabulary_size": config["vocab_size"]}
        tying = "all" if config["tie_word_embeddings"] else "none"
    longest = config["max_position_embeddings"]
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
        "dropout": config["dropout"],
        "activation": ACTIVATIONS[config["activation_function"]],
        "layer_norm_epsilon": MARIAN_EPSILON,
        "positions": PositionalEncoding(interleaved=False),
        "attention_options": {"dropout": config["attention_dropout"]},
        "feed_forward_options": {"dropout": config["activation_dropout"]},
        "max_source_length": longest,
        "max_target_length": longest,
    }


def marian_config(model: Seq2Seq) -> dict[str, Any]:
    """Makes the settings of a model for Marian.

    Args:
        model: a `Seq2Seq` with tokenizers.

    Returns:
        The settings of `DEFAULTS`.

    Raises:
        ValueError: if Marian does not support a part of it.
    """
    check_architecture(model)
    block = model.encoder.blocks[0]
    names = {function: name for name, function in reversed(ACTIVATIONS.items())}
    limits = (model.max_source_length, model.max_target_length)
    return {
        **DEFAULTS,
        "activation_dropout": block.feed_forward.dropout,
        "activation_function": names[model.activation],
        "attention_dropout": block.self_attention.dropout,
        "d_model": model.hidden_dim,
        "decoder_attention_heads": model.num_heads,
        "decoder_ffn_dim": model.intermediate_dim,
        "decoder_layers": model.num_decoder_layers,
        "decoder_start_token_id": model.start_token_id,
        "decoder_vocab_size": model.target_vocabulary_size,
        "dropout": model.dropout,
        "encoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.intermediate_dim,
        "encoder_layers": model.num_layers,
        "eos_token_id": model.end_token_id,
        "max_position_embeddings": max(limit or 512 for limit in limits),
        "model_type": "marian",
        "pad_token_id": model.pad_token_id,
        "scale_embedding": model.scale_embeddings,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "vocab_size": model.source_vocabulary_size,
    }


def check_architecture(model: Seq2Seq) -> None:
    """Makes sure that Marian can compute what the model computes.

    Args:
        model: a `Seq2Seq`.

    Raises:
        ValueError: if it cannot.
    """
    positions, block = model.positions, model.encoder.blocks[0]
    attention, feed_forward = block.self_attention, block.feed_forward
    residual = block.feed_forward_residual
    halves = PositionalEncoding(interleaved=False).get_config()
    sinusoids = type(positions) is PositionalEncoding and all(
        getattr(positions, name) == halves[name]
        for name in ("interleaved", "max_wavelength")
    )
    wanted = "`PositionalEncoding(interleaved=False)`"
    _check("positions", type(positions).__name__, wanted, sinusoids)
    first = model.normalize_first or residual.normalize_first
    _check("normalize_first", first, "`False`", not first)
    kind, epsilon = residual.normalization, residual.layer_norm_epsilon
    _check("normalization", kind, "'layer'", kind == "layer")
    same = math.isclose(epsilon, MARIAN_EPSILON)
    _check("layer_norm_epsilon", epsilon, f"{MARIAN_EPSILON}", same)
    known = model.activation in ACTIVATIONS.values()
    name = getattr(model.activation, "__name__", model.activation)
    _check("activation", name, f"one of {', '.join(map(repr, ACTIVATIONS))}", known)
    _check("gated", feed_forward.gated, "`False`", not feed_forward.gated)
    for layer in (attention, feed_forward):
        _check("use_bias", layer.use_bias, "`True`", layer.use_bias)
    _check("pattern", attention.pattern, "`None`", attention.pattern is None)
    _check("use_gate", attention.use_gate, "`False`", not attention.use_gate)
    heads = attention.num_key_value_heads
    _check("num_key_value_heads", heads, "`num_heads`", heads == model.num_heads)
    width = model.hidden_dim // model.num_heads
    for name in ("key_dim", "value_dim"):
        value = getattr(attention, name)
        _check(name, value, "`hidden_dim / num_heads`", value == width)


def _check(name: str, received: Any, wanted: str, right: bool) -> None:
    if not right:
        raise ValueError(
            f"`{name}` must be {wanted} for Marian; received `{name}={received!r}`. "
            "Save a `.keras` file or export a SavedModel, which can hold any model."
        )


def _require(config: dict[str, Any], name: str, wanted: str, is_right: Any) -> None:
    if is_right(config[name]) is not True:
        raise ValueError(
            f"`{name}` in config.json must be {wanted}; received "
            f"`{name}={config[name]!r}`. This library reads what transformers' "
            "`MarianMTModel` computes, and nothing else."
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1


def _is_known_activation(value: Any) -> bool:
    return isinstance(value, str) and value in ACTIVATIONS
