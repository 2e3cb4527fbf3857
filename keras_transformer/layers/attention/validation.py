"""Validation of the arguments of `MultiHeadAttention`."""

from collections.abc import Sequence

from keras_transformer.layers.attention.key_values import Cache, KeyValues
from keras_transformer.layers.attention.patterns import AttentionPattern, LocalWindow
from keras_transformer.layers.positions.scheme import PositionScheme, check_scheme
from keras_transformer.types import Shape, Size, Tensor
from keras_transformer_runtime.arguments import check_ints, check_rates

# Projections that may have a bias each.
PROJECTIONS = ("query", "key", "value", "output")


def check_dropout(dropout: float, flash_attention: bool | None) -> None:
    """Raises `ValueError` if the rate is out of range or excludes flash attention."""
    check_rates(dropout=dropout)
    if flash_attention and dropout > 0.0:
        raise ValueError(
            "Dropout is not supported when flash attention is enabled. Set "
            "`dropout=0.0` or leave `flash_attention=None`, which uses flash attention "
            f"when there is no dropout; received `dropout={dropout}`."
        )


def check_key_value_heads(num_heads: int, num_key_value_heads: int | None) -> None:
    """Raises `ValueError` if `num_key_value_heads` does not divide `num_heads`."""
    check_ints(1, optional=True, num_key_value_heads=num_key_value_heads)
    if num_key_value_heads is not None and num_heads % num_key_value_heads:
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`; received "
            f"`num_heads={num_heads}`, `num_key_value_heads={num_key_value_heads}`."
        )


def projections_with_bias(use_bias: object) -> bool | list[str]:
    """Returns the argument `use_bias`, with the names in the order of `PROJECTIONS`."""
    if isinstance(use_bias, bool):
        return use_bias
    names = use_bias if isinstance(use_bias, list | tuple) else None
    if names is None or not all(name in PROJECTIONS for name in names):
        raise ValueError(
            f"`use_bias` must be a bool or a list of names among {PROJECTIONS}; "
            f"received `use_bias={use_bias!r}`."
        )
    return [name for name in PROJECTIONS if name in names]


def check_attention_scheme(positions: PositionScheme | None) -> None:
    """Raises an error if `positions` is not a scheme that acts in attention."""
    check_scheme(positions)
    if positions is not None and positions.added_to_inputs:
        raise ValueError(
            "`positions` must be a scheme that acts in attention, such as "
            f"`RotaryEmbedding()`; received `positions={positions}`. Call this scheme "
            "on the inputs instead."
        )


def check_scores_available(
    return_attention_scores: bool, flash_attention: bool | None
) -> None:
    """Raises `ValueError` if both scores and flash attention are requested."""
    if return_attention_scores and flash_attention:
        raise ValueError(
            "Returning attention scores is not supported when flash attention is "
            "enabled. Please disable flash attention to access attention scores."
        )


def check_key_and_value_shapes(value_shape: Shape, key_shape: Shape) -> None:
    """Raises `ValueError` if the axes of keys and values differ before the last one."""
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "All axes of `value` and `key` but the last must be equal; received "
            f"`value.shape={tuple(value_shape)}`, `key.shape={tuple(key_shape)}`."
        )


def check_cache(
    cache: Cache | None, cache_update_index: Size | None, key_dim: int, value_dim: int
) -> None:
    """Raises `ValueError` if `cache` does not fit the other arguments."""
    is_one_tensor = cache is not None and not isinstance(cache, KeyValues)
    if is_one_tensor and key_dim != value_dim:
        raise ValueError(
            "`value_dim` must be equal to `key_dim` for a `cache` of one tensor, which "
            "contains both keys and values; received "
            f"`key_dim={key_dim}`, `value_dim={value_dim}`. Use the `KeyValues` of "
            "`compute_key_values`."
        )
    if cache is None and cache_update_index is not None:
        raise ValueError(
            "`cache_update_index` must be `None` without a `cache`; received "
            f"`cache_update_index={cache_update_index}`. Pass the cache too."
        )


def check_three_axes(
    query_shape: Shape,
    cache: Cache | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
) -> None:
    """Raises `ValueError` if inputs with more than three axes have an argument."""
    for name, argument in (
        ("cache", cache),
        ("query_positions", query_positions),
        ("key_positions", key_positions),
    ):
        if argument is not None:
            raise ValueError(
                f"`{name}` must be `None` for inputs with more than three axes; "
                f"received a value with `query.shape={tuple(query_shape)}`."
            )


def get_pattern(
    pattern: AttentionPattern | None, sliding_window: int | None
) -> AttentionPattern | None:
    """Returns the attention pattern of the arguments `pattern` and `sliding_window`."""
    if pattern is not None and not isinstance(pattern, AttentionPattern):
        raise TypeError(
            "`pattern` must be an `AttentionPattern`, such as `LocalWindow(8)`; "
            f"received `pattern={pattern!r}`."
        )
    if sliding_window is None:
        return pattern
    if pattern is not None:
        raise ValueError(
            "`sliding_window` must be `None` with a `pattern`; received "
            f"`sliding_window={sliding_window}`, `pattern={pattern}`."
        )
    return LocalWindow(sliding_window - 1)


def as_shape(output_shape: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns the argument `output_shape` as a tuple."""
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
