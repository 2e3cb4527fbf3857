"""Checks of the arguments of `MultiHeadAttention`."""

from typing import Any

from keras_transformer.arguments import check_rates
from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.layers.attention.patterns import AttentionPattern, LocalWindow
from keras_transformer.layers.positions.scheme import PositionScheme, check_scheme


def check_dropout(dropout: float, flash_attention: bool | None) -> None:
    """Raises a `ValueError` if the rate is out of range, or flash is asked for too."""
    check_rates(dropout=dropout)
    if flash_attention and dropout > 0.0:
        raise ValueError(
            "Dropout is not supported when flash attention is enabled. Set "
            "`dropout=0.0`, or leave `flash_attention=None`, which uses it where "
            f"nothing is dropped; received `dropout={dropout}`."
        )


def check_key_value_heads(num_heads: int, num_key_value_heads: int | None) -> None:
    """Raises a `ValueError` if the one is no multiple of the other."""
    if num_key_value_heads is not None and num_heads % num_key_value_heads:
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`; received "
            f"`num_heads={num_heads}`, `num_key_value_heads={num_key_value_heads}`."
        )


def check_acts_in_attention(positions: PositionScheme | None) -> None:
    """Raises an error if it is no scheme, or acts on the inputs of a model."""
    check_scheme(positions)
    if positions is not None and positions.added_to_inputs:
        raise ValueError(
            "`positions` must be a scheme that acts in attention, such as "
            f"`RotaryEmbedding()`; received `positions={positions}`. Call that one "
            "on the inputs instead."
        )


def check_scores_wanted(return_attention_scores: bool, flash_attention: Any) -> None:
    """Raises a `ValueError` if both scores and flash attention are asked for."""
    if return_attention_scores and flash_attention:
        raise ValueError(
            "Returning attention scores is not supported when flash attention is "
            "enabled. Please disable flash attention to access attention scores."
        )


def check_lengths(value_shape: Any, key_shape: Any) -> None:
    """Raises a `ValueError` if values and keys are not of the same tokens."""
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "All axes of `value` and `key` but the last must be equal; received "
            f"`value.shape={tuple(value_shape)}`, `key.shape={tuple(key_shape)}`."
        )


def check_cache(
    cache: Any, cache_update_index: Any, key_dim: int, value_dim: int
) -> None:
    """Raises a `ValueError` if there is no cache to update, or none is possible."""
    is_one_tensor = cache is not None and not isinstance(cache, KeyValues)
    if is_one_tensor and key_dim != value_dim:
        raise ValueError(
            "`value_dim` must be equal to `key_dim` for a `cache` of one tensor, which "
            f"holds keys and values side by side; received `key_dim={key_dim}`, "
            f"`value_dim={value_dim}`. Use the `KeyValues` of `compute_key_values`."
        )
    if cache is None and cache_update_index is not None:
        raise ValueError(
            "`cache_update_index` must be `None` when `cache` is; received "
            f"`cache_update_index={cache_update_index}`. Pass the cache too."
        )


def check_three_axes(query_shape: Any, **arguments: Any) -> None:
    """Raises a `ValueError` if one of the arguments is given with more axes."""
    for name, argument in arguments.items():
        if argument is not None:
            raise ValueError(
                f"`{name}` must be `None` for inputs with more than three axes; "
                f"received one with `query.shape={tuple(query_shape)}`."
            )


def one_pattern(
    pattern: AttentionPattern | None, sliding_window: int | None
) -> AttentionPattern | None:
    """Returns the pattern that either argument stands for."""
    if pattern is not None and not isinstance(pattern, AttentionPattern):
        raise TypeError(
            "`pattern` must be an `AttentionPattern`, such as `LocalWindow(8)`; "
            f"received `pattern={pattern!r}`."
        )
    if sliding_window is None:
        return pattern
    if pattern is not None:
        raise ValueError(
            "`sliding_window` must be `None` when a `pattern` is given; received "
            f"`sliding_window={sliding_window}`, `pattern={pattern}`."
        )
    return LocalWindow(sliding_window - 1)


def as_shape(output_shape: Any) -> tuple[int, ...] | None:
    """Returns an int or ints as a tuple."""
    if output_shape is None:
        return None
    try:
        sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
        return tuple(sizes)
    except TypeError as error:
        raise ValueError(
            "Invalid `output_shape`: it must be an int or ints; received "
            f"`output_shape={output_shape!r}`."
        ) from error
