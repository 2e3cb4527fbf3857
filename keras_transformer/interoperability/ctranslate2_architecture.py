"""Derives the architecture of a CTranslate2 model from its variables."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import keras
import numpy as np

from keras_transformer.interoperability.ctranslate2_file import DECODER_ONLY, Variables
from keras_transformer.interoperability.tensors import are_sinusoids
from keras_transformer.layers import (
    AlibiBias,
    LearnedPositionalEncoding,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.layers.activations import gelu_new
from keras_transformer.types import Config, Tensor
from keras_transformer_runtime.arguments import check_positive

Number = TypeVar("Number", int, float)

# Names of variables.
SOURCE = "encoder/embeddings_0/weight"
TARGET = "decoder/embeddings/weight"
OUTPUT = "decoder/projection/weight"
BIAS = "decoder/projection/bias"
FIRST_ATTENTION = "/layer_0/self_attention/"
ROTARY_DIM = FIRST_ATTENTION + "rotary_dim"
RELATIVE_BIAS = FIRST_ATTENTION + "relative_attention_bias"
POSITION_TABLE = "/position_encodings/encodings"
EMBEDDING_NORM = "/layernorm_embedding/gamma"
ALIBI = "decoder/alibi"

# Activations by their numbers in the enum `Activation` of
# ctranslate2.specs.common_spec. The package is not required to load a model.
ACTIVATIONS = {
    0: keras.activations.relu,
    1: gelu_new,
    2: keras.activations.silu,
    3: keras.activations.gelu,
    5: keras.activations.tanh,
    6: keras.activations.sigmoid,
}
MAX_RELATIVE_DISTANCE = 100_000
DEFAULT_MAX_LENGTH = 500


def seq2seq_arguments(variables: Variables, epsilon: float | None) -> Config:
    """Returns the arguments of a `Seq2Seq` for the architecture of the model.

    `epsilon` is `layer_norm_epsilon` in its `config.json`.
    """
    source, target, output = map(variables.stored_name, (SOURCE, TARGET, OUTPUT))
    tying = {
        (True, True): "all",
        (True, False): "inputs",
        (False, True): "target",
        (False, False): "none",
    }
    arguments = _shared_arguments(variables, epsilon, SOURCE)
    scheme, lengths = _positions(variables)
    names = ("max_source_length", "max_target_length")
    return {
        **arguments,
        "num_layers": variables.count("encoder/layer_"),
        "num_decoder_layers": variables.count("decoder/layer_"),
        "tie_embeddings": tying[source == target, output == target],
        "positions": scheme,
        **dict(zip(names, lengths, strict=False)),
    }


def causal_lm_arguments(variables: Variables, epsilon: float | None) -> Config:
    """Returns the arguments of a `CausalLM`; see `seq2seq_arguments`."""
    target, output = map(variables.stored_name, (TARGET, OUTPUT))
    arguments = _shared_arguments(variables, epsilon, TARGET)
    scheme, lengths = _positions(variables)
    return {
        **arguments,
        "num_layers": variables.count("decoder/layer_"),
        "tie_embeddings": output == target,
        "positions": scheme,
        **dict(zip(("max_length",), lengths, strict=False)),
    }


def _shared_arguments(
    variables: Variables, epsilon: float | None, embeddings: str
) -> Config:
    """Returns the arguments that `Seq2Seq` and `CausalLM` share."""
    # They are those of the first side, with the given embeddings. The other side must
    # have the same.
    side = variables.sides[0]
    first, width = f"{side}/layer_0/", _matrix_size(variables, embeddings, -1)
    heads = _shared_int(variables, "num_heads")
    _require("num_heads", heads, heads > 0 and width % heads == 0, f"divide {width}")
    rms = first + "ffn/layer_norm/beta" not in variables
    default_epsilon = 1e-6 if rms else 1e-5  # of CTranslate2
    epsilon = default_epsilon if epsilon is None else epsilon
    check_positive(**{"layer_norm_epsilon in config.json": epsilon})
    intermediate_dim = _matrix_size(variables, first + "ffn/linear_0/weight", 0)
    attention = _attention_options(variables, width, heads)
    _check_embeddings(variables, width)
    gated = first + "ffn/linear_0_noact/weight" in variables
    _check_feed_forward(variables, width, intermediate_dim, gated)
    return {
        "hidden_dim": width,
        "intermediate_dim": intermediate_dim,
        "num_heads": heads,
        "normalize_first": bool(_shared_int(variables, "pre_norm", True)),
        "activation": _activation(variables),
        "scale_embeddings": _scales_embeddings(variables, width),
        "normalize_embeddings": side + EMBEDDING_NORM in variables,
        "attention_options": attention,
        "feed_forward_options": {
            "gated": gated,
            "use_bias": first + "ffn/linear_0/bias" in variables,
        },
        "residual_options": {"normalization": "rms" if rms else "layer"},
        "layer_norm_epsilon": epsilon,
    }


def _scales_embeddings(variables: Variables, width: int) -> bool:
    """Returns whether embeddings are scaled; the setting is a flag or the scale."""
    scale = _common(variables.scalar, variables.sides, "scale_embeddings", 1.0)
    if variables.kind(f"{variables.sides[0]}/scale_embeddings") == "f":
        scaled, unscaled = bool(np.isclose(scale, width**0.5)), scale == 1
    else:
        scaled, unscaled = scale == 1, scale == 0
    expected = "be 1 or √hidden_dim"
    _require("scale_embeddings", scale, scaled or unscaled, expected)
    return scaled


def _attention_options(variables: Variables, width: int, num_heads: int) -> Config:
    first = variables.sides[0] + FIRST_ATTENTION
    attentions = _attentions(variables)
    kv_heads = _common(variables.integer, attentions, "num_heads_kv", num_heads)
    _require("num_heads_kv", kv_heads, kv_heads > 0, "be positive")
    head_dim = _common(variables.integer, attentions, "head_dim", width // num_heads)
    queries, keys = num_heads * head_dim, kv_heads * head_dim
    for attention in attentions:
        inputs = [(queries + 2 * keys, width)]
        if not attention.endswith("self_attention"):
            inputs = [(queries, width), (2 * keys, width)]
        for i, shape in enumerate([*inputs, (width, queries)]):
            _check_shape(variables, f"{attention}/linear_{i}/weight", shape)
    return {
        "num_key_value_heads": kv_heads,
        "key_dim": head_dim,
        "use_bias": first + "linear_0/bias" in variables,
    }


def _check_embeddings(variables: Variables, width: int) -> None:
    has_encoder = "encoder" in variables.sides
    for name in (*([SOURCE] if has_encoder else []), TARGET, OUTPUT):
        _check_shape(variables, name, (_matrix_size(variables, name, 0), width))
    if BIAS in variables:
        _check_shape(variables, BIAS, variables.shape(OUTPUT)[:1])
    for name in (side + POSITION_TABLE for side in variables.sides):
        if name in variables:
            _check_shape(variables, name, (_matrix_size(variables, name, 0), width))


def _check_feed_forward(
    variables: Variables, width: int, intermediate_dim: int, gated: bool
) -> None:
    inputs = ("linear_0", "linear_0_noact")[: 1 + gated]
    for layer in _layers(variables):
        for name in inputs:
            shape = (intermediate_dim, width)
            _check_shape(variables, f"{layer}/ffn/{name}/weight", shape)
        shape = (width, intermediate_dim)
        _check_shape(variables, f"{layer}/ffn/linear_1/weight", shape)


def _layers(variables: Variables) -> list[str]:
    counts = {side: variables.count(f"{side}/layer_") for side in variables.sides}
    return [f"{side}/layer_{i}" for side in counts for i in range(counts[side])]


def _attentions(variables: Variables) -> list[str]:
    layers = _layers(variables)
    attentions = [f"{layer}/self_attention" for layer in layers]
    if "encoder" in variables.sides:
        decoder = (layer for layer in layers if layer.startswith("decoder"))
        attentions += [f"{layer}/attention" for layer in decoder]
    return attentions


def _activation(variables: Variables) -> Callable[[Tensor], Tensor]:
    number = _shared_int(variables, "activation", 0)
    expected = f"be one of {', '.join(map(str, ACTIVATIONS))}"
    _require("activation", number, number in ACTIVATIONS, expected)
    return ACTIVATIONS[number]


def _positions(variables: Variables) -> tuple[PositionScheme, list[int]]:
    """Returns the scheme, and the length of the table of each side if it has one."""
    first = variables.sides[0]
    layers = [f"{layer}/self_attention" for layer in _layers(variables)]
    if first + ROTARY_DIM in variables:
        return _rotary_embedding(variables, layers), []
    if first + RELATIVE_BIAS in variables:
        return _relative_position_bias(variables, layers), []
    if variables.name == DECODER_ONLY and variables.scalar(ALIBI, 0):
        return AlibiBias(), []
    tables = [position_table(variables, side) for side in variables.sides]
    lengths = list(map(len, tables))
    for interleaved in (True, False):
        if all(are_sinusoids(table, interleaved) for table in tables):
            return PositionalEncoding(interleaved=interleaved), lengths
    return LearnedPositionalEncoding(max_length=max(lengths)), lengths


def _rotary_embedding(variables: Variables, layers: list[str]) -> PositionScheme:
    width = variables.shape(TARGET)[-1] // _shared_int(variables, "num_heads")
    head_dim = _common(variables.integer, layers, "head_dim", width)
    dim = _common(variables.integer, layers, "rotary_dim")
    _require("rotary_dim", dim, dim in (0, head_dim), "equal `head_dim`")
    interleaved = _common(variables.integer, layers, "rotary_interleave", 1)
    _require("rotary_interleave", interleaved, not interleaved, "be 0")
    base = _common(variables.scalar, layers, "rotary_base", 10000.0)
    _require("rotary_base", base, base > 1, "be above 1")
    return RotaryEmbedding(max_wavelength=base)


def _relative_position_bias(variables: Variables, layers: list[str]) -> PositionScheme:
    first = variables.sides[0]
    bidirectional = first == "encoder"
    buckets = _matrix_size(variables, first + RELATIVE_BIAS, 0)
    heads = _shared_int(variables, "num_heads")
    name = "relative_attention_max_distance"
    distance = _common(variables.integer, layers, name, 128)
    exact = buckets // (4 if bidirectional else 2)
    in_range = exact < distance < MAX_RELATIVE_DISTANCE
    expected = f"be between {exact} and {MAX_RELATIVE_DISTANCE}"
    _require(name, distance, in_range, expected)
    for layer in layers:
        is_half = bidirectional and layer.startswith("decoder")
        rows = buckets // 2 if is_half else buckets
        _check_shape(variables, f"{layer}/relative_attention_bias", (rows, heads))
    return RelativePositionBias(
        buckets, max_distance=distance, bidirectional=bidirectional
    )


def position_table(variables: Variables, side: str) -> np.ndarray:
    """Returns the position encodings of a side, float32 `(max_length, hidden_dim)`."""
    name = side + POSITION_TABLE
    if name in variables:
        return variables.weight(name)
    return _default_table(variables.shape(TARGET)[-1])


def _default_table(hidden_dim: int) -> np.ndarray:
    """Returns the encodings of models without a table: float32 `(500, hidden_dim)`."""
    # CTranslate2 counts positions from 1 and reaches the longest wavelength exactly, as
    # tensor2tensor does.
    half = hidden_dim // 2
    rates = np.exp(np.arange(half) * -np.log(10000) / max(half - 1, 1))
    angles = np.arange(1, DEFAULT_MAX_LENGTH + 1)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


def _matrix_size(variables: Variables, name: str, axis: int) -> int:
    """Returns the number of rows or columns of a matrix."""
    shape = variables.shape(name)
    if len(shape) != 2:
        raise ValueError(
            f"{name!r} in model.bin must be a matrix; it has shape {shape}. Convert "
            "the model again."
        )
    return shape[axis]


def _check_shape(variables: Variables, name: str, expected: tuple[int, ...]) -> None:
    """Raises an error if a variable has another shape, before the model is built."""
    shape = variables.shape(name)
    if shape != expected:
        raise ValueError(
            f"{name!r} in model.bin must have shape {expected}; it has shape {shape}. "
            "Convert the model again."
        )


def _shared_int(variables: Variables, name: str, default: int | None = None) -> int:
    """Returns a setting that must be the same in the encoder and the decoder."""
    return _common(variables.integer, variables.sides, name, default)


def _common(
    read: Callable[[str, Number | None], Number],
    parts: Iterable[str],
    name: str,
    default: Number | None = None,
) -> Number:
    """Returns a setting that must be the same in several parts of the model."""
    values = {read(f"{part}/{name}", default) for part in parts}
    _require(name, sorted(values), len(values) == 1, "be the same in all layers")
    return values.pop()


def _require(name: str, received: object, supported: bool, expected: str) -> None:
    if not supported:
        raise ValueError(
            f"`{name}` in model.bin must {expected}; received `{name}={received!r}`, "
            "which this library does not support."
        )
