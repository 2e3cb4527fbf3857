"""The architecture of a CTranslate2 model, from its variables."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.export.ctranslate2_activations import ACTIVATIONS
from keras_transformer.interoperability.ctranslate2_file import SIDES, Variables
from keras_transformer.layers import (
    LearnedPositionalEncoding,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
)

SOURCE = "encoder/embeddings_0/weight"
TARGET = "decoder/embeddings/weight"
OUTPUT = "decoder/projection/weight"
BIAS = "decoder/projection/bias"
FIRST = "/layer_0/self_attention/"
ROTARY_DIM = FIRST + "rotary_dim"
RELATIVE_BIAS = FIRST + "relative_attention_bias"
MAX_DISTANCE = FIRST + "relative_attention_max_distance"
TABLE = "/position_encodings/encodings"
LONGEST_DISTANCE = 100_000
DEFAULT_LENGTH = 500
TABLE_TOLERANCE = 5e-3


def architecture(variables: Variables, epsilon: float | None) -> dict[str, Any]:
    """Makes the arguments of a `Seq2Seq`, except vocabularies and special tokens.

    Args:
        variables: those of the model.
        epsilon: `layer_norm_epsilon` of its config.json.

    Returns:
        Keyword arguments.

    Raises:
        ValueError: if the model computes something that this library does not support.
    """
    first, width = "encoder/layer_0/", _size(variables, SOURCE, -1)
    heads = _same(variables, "num_heads")
    _require("num_heads", heads, heads > 0 and width % heads == 0, f"divide {width}")
    scale = float(_same(variables, "scale_embeddings", 1))
    scaled = scale == 1 if _is_flag(variables) else bool(np.isclose(scale, width**0.5))
    plain = scale == (0 if _is_flag(variables) else 1)
    _require("scale_embeddings", scale, scaled or plain, "be 1 or √hidden_dim")
    rms = first + "ffn/layer_norm/beta" not in variables
    usual_epsilon = 1e-6 if rms else 1e-5  # CTranslate2's own
    intermediate_dim = _size(variables, first + "ffn/linear_0/weight", 0)
    attention = _attention(variables, width, heads)
    _check_embeddings(variables, width)
    gated = first + "ffn/linear_0_noact/weight" in variables
    _check_feed_forward(variables, width, intermediate_dim, gated)
    return {
        "num_layers": variables.count("encoder/layer_"),
        "num_decoder_layers": variables.count("decoder/layer_"),
        "hidden_dim": width,
        "intermediate_dim": intermediate_dim,
        "num_heads": heads,
        "normalize_first": bool(_same(variables, "pre_norm", True)),
        "activation": _activation(variables),
        "scale_embeddings": scaled,
        "tie_embeddings": _tying(variables),
        "attention_options": attention,
        "feed_forward_options": {
            "gated": gated,
            "use_bias": first + "ffn/linear_0/bias" in variables,
        },
        "residual_options": {"normalization": "rms" if rms else "layer"},
        "layer_norm_epsilon": usual_epsilon if epsilon is None else epsilon,
        **_positions(variables),
    }


def _is_flag(variables: Variables) -> bool:
    """Whether `scale_embeddings` is a flag; else it is the scale."""
    return variables.kind("encoder/scale_embeddings") != "f"


def _attention(variables: Variables, width: int, num_heads: int) -> dict[str, Any]:
    found = {"num_heads_kv": num_heads, "head_dim": width // num_heads}
    for name, usual in found.items():
        found[name] = variables.scalar("encoder" + FIRST + name, usual)
        for attention in _attentions(variables):
            value = variables.scalar(f"{attention}/{name}", usual)
            same = value == found[name] > 0
            _require(name, value, same, "be the same in all layers, and positive")
    queries, keys = (
        heads * found["head_dim"] for heads in (num_heads, found["num_heads_kv"])
    )
    for attention in _attentions(variables):
        inputs = [(queries + 2 * keys, width)]
        if not attention.endswith("self_attention"):
            inputs = [(queries, width), (2 * keys, width)]
        for i, shape in enumerate([*inputs, (width, queries)]):
            _check_shape(variables, f"{attention}/linear_{i}/weight", shape)
    return {
        "num_key_value_heads": found["num_heads_kv"],
        "key_dim": found["head_dim"],
        "use_bias": "encoder" + FIRST + "linear_0/bias" in variables,
    }


def _check_embeddings(variables: Variables, width: int) -> None:
    for name in (SOURCE, TARGET, OUTPUT):
        _check_shape(variables, name, (_size(variables, name, 0), width))
    if BIAS in variables:
        _check_shape(variables, BIAS, variables.shape(OUTPUT)[:1])
    for name in (side + TABLE for side in SIDES):
        if name in variables:
            _check_shape(variables, name, (_size(variables, name, 0), width))


def _check_feed_forward(
    variables: Variables, width: int, rows: int, gated: bool
) -> None:
    for layer in _layers(variables):
        for name in ("linear_0", "linear_0_noact")[: 1 + gated]:
            _check_shape(variables, f"{layer}/ffn/{name}/weight", (rows, width))
        _check_shape(variables, f"{layer}/ffn/linear_1/weight", (width, rows))


def _layers(variables: Variables) -> list[str]:
    counts = {side: variables.count(f"{side}/layer_") for side in SIDES}
    return [f"{side}/layer_{i}" for side in SIDES for i in range(counts[side])]


def _attentions(variables: Variables) -> list[str]:
    layers = _layers(variables)
    cross = [f"{layer}/attention" for layer in layers if layer.startswith("decoder")]
    return [*(f"{layer}/self_attention" for layer in layers), *cross]


def _activation(variables: Variables) -> Any:
    number = _same(variables, "activation", 0)
    functions = {int(kind): function for function, kind in ACTIVATIONS.items()}
    wanted = f"be one of {', '.join(map(str, sorted(functions)))}"
    _require("activation", number, number in functions, wanted)
    return functions[number]


def _tying(variables: Variables) -> str:
    source, target, output = map(variables.stored_name, (SOURCE, TARGET, OUTPUT))
    if output != target:
        return "none"
    return "all" if source == target else "target"


def _positions(variables: Variables) -> dict[str, Any]:
    """The scheme, and the greatest lengths if it sets any."""
    if "encoder" + ROTARY_DIM in variables:
        return {"positions": _rotary(variables)}
    if "encoder" + RELATIVE_BIAS in variables:
        return {"positions": _relative(variables)}
    tables = [position_table(variables, side) for side in SIDES]
    scheme = _sinusoids(tables, True) or _sinusoids(tables, False)
    longest = max(map(len, tables))
    return {
        "positions": scheme or LearnedPositionalEncoding(max_length=longest),
        "max_source_length": len(tables[0]),
        "max_target_length": len(tables[1]),
    }


def _rotary(variables: Variables) -> PositionScheme:
    width = variables.shape(SOURCE)[-1] // _same(variables, "num_heads")
    base = variables.scalar("encoder" + FIRST + "rotary_base", 10000.0)
    for layer in _layers(variables):
        prefix = f"{layer}/self_attention/"
        head_dim = variables.scalar(prefix + "head_dim", width)
        turned = variables.scalar(prefix + "rotary_dim")
        _require("rotary_dim", turned, turned in (0, head_dim), "be that of the heads")
        pairs = variables.scalar(prefix + "rotary_interleave", 1)
        _require("rotary_interleave", pairs, not pairs, "be 0")
        own = variables.scalar(prefix + "rotary_base", 10000.0)
        _require("rotary_base", own, own == base > 1, "be the same in all layers")
    return RotaryEmbedding(max_wavelength=base)


def _relative(variables: Variables) -> PositionScheme:
    buckets = _size(variables, "encoder" + RELATIVE_BIAS, 0)
    heads = _same(variables, "num_heads")
    distance = variables.scalar("encoder" + MAX_DISTANCE, 128)
    right = buckets // 4 < distance < LONGEST_DISTANCE
    _require("relative_attention_max_distance", distance, right, "be in range")
    for layer in _layers(variables):
        prefix = f"{layer}/self_attention/relative_attention_"
        wanted = buckets // 2 if layer.startswith("decoder") else buckets
        _check_shape(variables, prefix + "bias", (wanted, heads))
        own = variables.scalar(prefix + "max_distance", 128)
        _require("relative_attention_max_distance", own, own == distance, "be one")
    return RelativePositionBias(buckets, max_distance=distance)


def position_table(variables: Variables, side: str) -> np.ndarray:
    """The vectors that are added: float32 `(length, hidden_dim)`."""
    name = side + TABLE
    if name in variables:
        return variables.weight(name)
    return default_table(variables.shape(SOURCE)[-1])


def default_table(hidden_dim: int) -> np.ndarray:
    """The vectors that CTranslate2 adds without a table: float32 `(500, hidden_dim)`.

    Positions are counted from 1, and the longest wavelength is reached exactly, as in
    tensor2tensor.
    """
    half = hidden_dim // 2
    rates = np.exp(np.arange(half) * -np.log(10000) / max(half - 1, 1))
    angles = np.arange(1, DEFAULT_LENGTH + 1)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


def _sinusoids(tables: list[np.ndarray], interleaved: bool) -> PositionScheme | None:
    """The scheme that computes these very tables, if there is one."""
    for table in tables:
        layer = PositionalEncoding(interleaved=interleaved, dtype="float32")
        own = ops.convert_to_numpy(layer(np.zeros((1, *table.shape), "float32")))[0]
        if not np.allclose(own, table, atol=TABLE_TOLERANCE):
            return None
    return PositionalEncoding(interleaved=interleaved)


def _size(variables: Variables, name: str, axis: int) -> int:
    """The rows or the columns of a matrix."""
    shape = variables.shape(name)
    if len(shape) != 2:
        raise ValueError(
            f"{name!r} in model.bin must be a matrix; it has shape {shape}. Convert "
            "the model again."
        )
    return shape[axis]


def _check_shape(variables: Variables, name: str, wanted: tuple[int, ...]) -> None:
    """Makes sure, before a model is built, that it is no larger than the file."""
    shape = variables.shape(name)
    if shape != wanted:
        raise ValueError(
            f"{name!r} in model.bin must have shape {wanted}; it has shape {shape}. "
            "Convert the model again."
        )


def _same(variables: Variables, name: str, default: Any = None) -> Any:
    """A setting that the encoder and the decoder share."""
    one, other = (variables.scalar(f"{side}/{name}", default) for side in SIDES)
    _require(name, (one, other), one == other, "be the same in encoder and decoder")
    return one


def _require(name: str, received: Any, right: bool, wanted: str) -> None:
    if not right:
        raise ValueError(
            f"`{name}` in model.bin must {wanted}; received `{name}={received!r}`, "
            "which this library does not support."
        )
