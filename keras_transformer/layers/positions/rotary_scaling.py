"""Scalings of rotary embeddings for sequences longer than those of the training."""

import math
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_transformer.layers.positions.scheme import (
    position_angles,
    sinusoid_frequencies,
)
from keras_transformer.types import Config, Tensor
from keras_transformer_runtime.arguments import (
    check_ints,
    check_numbers,
    check_one_of,
)

# Entries that each type requires, and those that it may have.
_REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_length"),
    "yarn": ("factor", "original_max_length"),
    "llama3": (
        "factor",
        "original_max_length",
        "low_frequency_factor",
        "high_frequency_factor",
    ),
}
_MAGNITUDES = ("mscale", "mscale_all_dim")
_OPTIONAL = {
    "yarn": ("beta_fast", "beta_slow", "attention_factor", *_MAGNITUDES, "truncate")
}
_BETA_FAST, _BETA_SLOW = 32, 1  # Peng et al., 2023, section 3.2
_REMEDY = "It is an entry of `scaling`."


def check_scaling(scaling: Any, max_wavelength: float) -> Config | None:
    """Returns the argument `scaling` without the entries that are `None`."""
    if scaling is None:
        return None
    kind = scaling.get("type") if isinstance(scaling, Mapping) else None
    if kind not in list(_REQUIRED):  # an unhashable value too
        raise ValueError(
            "`scaling` must be `None` or a dictionary whose entry 'type' is one of "
            f"{', '.join(map(repr, _REQUIRED))}; received `scaling={scaling!r}`."
        )
    scaling = {name: value for name, value in scaling.items() if value is not None}
    _check_names(scaling)
    for name, value in scaling.items():
        if name == "original_max_length":
            check_ints(1, remedy=_REMEDY, original_max_length=value)
        elif name == "truncate":
            check_one_of((True, False), remedy=_REMEDY, truncate=value)
        elif name != "type":
            check_numbers(above=0, remedy=_REMEDY, **{name: value})
    if kind == "llama3":
        low, high = (scaling[f"{each}_frequency_factor"] for each in ("low", "high"))
        check_numbers(above=low, remedy=_REMEDY, high_frequency_factor=high)
    if kind == "yarn":
        slow, fast = _betas(scaling)
        check_numbers(slow, remedy=_REMEDY, beta_fast=fast)
        check_numbers(above=1, remedy="YaRN needs it.", max_wavelength=max_wavelength)
    return scaling


def _check_names(scaling: Config) -> None:
    """Raises `ValueError` if an entry is missing or unknown."""
    kind = scaling["type"]
    required, optional = list(_REQUIRED[kind]), _OPTIONAL.get(kind, ())
    if any(name in scaling for name in _MAGNITUDES):
        required += _MAGNITUDES
    problems = [f"no {name!r}" for name in required if name not in scaling]
    known = {"type", *required, *optional}
    problems += [repr(name) for name in scaling if name not in known]
    if problems:
        expected = f"must have the entries {', '.join(map(repr, required))}"
        if optional:
            expected += f" and may have {', '.join(map(repr, optional))}"
        raise ValueError(
            f"`scaling` of type {kind!r} {expected}; received {', '.join(problems)} in "
            f"`scaling={scaling!r}`."
        )


def rotary_angles(
    positions: Tensor, dim: int, max_wavelength: float, scaling: Config | None
) -> Tensor:
    """Computes float32 angles `(…, length, dim / 2)` of positions `(…, length)`."""
    frequencies = scaled_frequencies(dim, max_wavelength, scaling)
    angles = position_angles(positions, frequencies)
    if scaling is None or scaling["type"] != "dynamic":
        return angles
    # `max_wavelength` becomes `max_wavelength * growth^(dim / (dim - 2))`, which
    # divides frequency `i` by `growth^(2i / (dim - 2))`.
    original = scaling["original_max_length"]
    longest = ops.max(positions, axis=-1, keepdims=True) + 1
    excess = ops.cast(ops.maximum(longest - original, 0), "float32")
    growth = 1.0 + excess[..., None] * (scaling["factor"] / original)
    exponents = [-i / max(dim - 2, 1) for i in range(0, dim, 2)]
    return angles * ops.power(growth, ops.convert_to_tensor(exponents, "float32"))


def scaled_frequencies(
    dim: int, max_wavelength: float, scaling: Config | None
) -> list[float]:
    """Computes the `dim / 2` angles of position 1.

    A dynamic scaling has these frequencies up to `original_max_length`.
    """
    frequencies = sinusoid_frequencies(dim, max_wavelength)
    if scaling is None or scaling["type"] == "dynamic":
        return frequencies
    kept = [0.0] * len(frequencies)  # 1 = as without a scaling, 0 = scaled
    if scaling["type"] == "yarn":
        kept = _kept_by_yarn(dim, max_wavelength, scaling)
    elif scaling["type"] == "llama3":
        kept = _kept_by_llama3(frequencies, scaling)
    factor = scaling["factor"]
    return [
        share * frequency + (1 - share) * frequency / factor
        for share, frequency in zip(kept, frequencies, strict=True)
    ]


def _kept_by_yarn(dim: int, max_wavelength: float, scaling: Config) -> list[float]:
    def index(rotations: float) -> float:
        """Returns which frequency rotates so often within the original length."""
        wavelength = scaling["original_max_length"] / (2 * math.pi * rotations)
        return dim * math.log(wavelength) / (2 * math.log(max_wavelength))

    slow, fast = _betas(scaling)
    low, high = index(fast), index(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # as in transformers
    return [1 - _clip((i - low) / (high - low)) for i in range(dim // 2)]


def _betas(scaling: Config) -> tuple[float, float]:
    slow: float = scaling.get("beta_slow", _BETA_SLOW)
    fast: float = scaling.get("beta_fast", _BETA_FAST)
    return slow, fast


def _kept_by_llama3(frequencies: list[float], scaling: Config) -> list[float]:
    low, high = (scaling[f"{each}_frequency_factor"] for each in ("low", "high"))
    turns = scaling["original_max_length"] / (2 * math.pi)
    return [_clip((turns * each - low) / (high - low)) for each in frequencies]


def _clip(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def attention_factor(scaling: Config | None) -> float:
    """Returns the factor by which queries and keys are multiplied."""
    if scaling is None or scaling["type"] != "yarn":
        return 1.0
    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])
    growth = 0.1 * math.log(max(scaling["factor"], 1))
    if "mscale" not in scaling:
        return 1 + growth
    numerator, denominator = (1 + growth * scaling[name] for name in _MAGNITUDES)
    return float(numerator / denominator)
