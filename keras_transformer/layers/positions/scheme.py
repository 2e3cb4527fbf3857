"""What a position scheme is: three places where order can enter attention."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class PositionScheme(keras.layers.Layer):
    """How a model tells the order of its inputs.

    Attention sees a set; order enters it in one of three places, each a method
    that does nothing until a subclass overrides it: `encode` adds to the inputs
    of a model, `rotate` turns queries and keys, `bias` is added to the
    attention logits. Positions are counted from 0 and given explicitly, so
    that a scheme also works with a cache and with beams as query positions.

    To write your own, override one of the three, and set
    `added_to_inputs = True` where that is `encode`. Weights are made in `build`:
    a model calls it with the shape `(batch, length, hidden_dim)` of its inputs
    if `added_to_inputs`, an attention layer with the shape
    `(batch, num_heads, query_length, key_length)` of its logits if not.

    `call` is the scheme's use by itself. Here it is that of an encoding: it takes
    the inputs, and `start_index` or `positions`, and calls `encode`.

    Attributes:
        added_to_inputs: bool, whether it acts once, on the inputs of a model,
            by `encode`, or in every self-attention, by `rotate` and `bias`.
        max_length: int, how many positions there are; `None` = any number.

    Args:
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Example:

    >>> class Distance(PositionScheme):
    ...     def bias(self, query_positions, key_positions):
    ...         gaps = query_positions[..., :, None] - key_positions[..., None, :]
    ...         return -ops.cast(ops.abs(gaps), "float32")[..., None, :, :]
    >>> positions = ops.arange(3)
    >>> ops.convert_to_numpy(Distance().bias(positions, positions)).tolist()
    [[[-0.0, -1.0, -2.0], [-1.0, -0.0, -1.0], [-2.0, -1.0, -0.0]]]
    """

    added_to_inputs = False
    max_length: int | None = None

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def encode(self, inputs: Any, positions: Any) -> Any:
        """Adds the positions to the inputs of a model.

        Args:
            inputs: float tensor `(batch, length, hidden_dim)`.
            positions: int tensor `(length,)` or `(batch, length)`.

        Returns:
            Tensor of the shape and dtype of `inputs`; here, `inputs`.
        """
        return inputs

    def rotate(self, heads: Any, positions: Any) -> Any:
        """Turns queries or keys by their positions.

        Args:
            heads: float tensor `(batch, length, num_heads, key_dim)`.
            positions: int tensor `(length,)` or `(batch, length)`.

        Returns:
            Tensor of the shape and dtype of `heads`; here, `heads`.
        """
        return heads

    def bias(self, query_positions: Any, key_positions: Any) -> Any:
        """Computes what is added to the attention logits.

        Args:
            query_positions: int tensor `(query_length,)` or
                `(batch, query_length)`.
            key_positions: int tensor `(key_length,)` or `(batch, key_length)`.

        Returns:
            float32 tensor `(num_heads, query_length, key_length)`, or
            `(batch, num_heads, query_length, key_length)` if either positions
            have an axis for the batch; `num_heads` may be 1. `None`, as here,
            adds nothing.
        """
        return None

    def call(self, inputs: Any, start_index: Any = 0, positions: Any = None) -> Any:
        if positions is None:
            positions = sequence_positions(inputs, start_index, axis=-2)
        return self.encode(inputs, positions)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def copy_scheme(scheme: PositionScheme | None, dtype: Any) -> PositionScheme | None:
    """Copies a scheme, with weights of its own.

    Args:
        scheme: a scheme, or `None`.
        dtype: dtype or dtype policy of the copy.

    Returns:
        A scheme that is not built; `None` for `None`.

    Raises:
        TypeError: if it is something else.
    """
    check_scheme(scheme)
    if scheme is None:
        return None
    return type(scheme).from_config({**scheme.get_config(), "dtype": dtype})


def keep_untracked(layer: keras.layers.Layer, scheme: PositionScheme | None) -> None:
    """Sets the attribute `positions`, which is no sub-layer: only copies are used.

    Args:
        layer: the layer that gets the attribute.
        scheme: a scheme, or `None`.

    Raises:
        TypeError: if it is something else.
    """
    check_scheme(scheme)
    object.__setattr__(layer, "positions", scheme)


def check_scheme(scheme: Any) -> None:
    """Checks that an argument `positions` is a scheme or `None`.

    Args:
        scheme: the argument.

    Raises:
        TypeError: if it is something else.
    """
    if scheme is not None and not isinstance(scheme, PositionScheme):
        raise TypeError(
            "`positions` must be a `PositionScheme`, such as `RotaryEmbedding()`; "
            f"received `positions={scheme!r}`."
        )


def sequence_positions(inputs: Any, start_index: Any = 0, axis: int = 1) -> Any:
    """Counts the positions along an axis.

    Args:
        inputs: tensor of any shape.
        start_index: int or int scalar tensor, the first position.
        axis: int, the axis that is counted along.

    Returns:
        int32 tensor `(length,)`: `start_index + 0, 1, 2, …`.

    Example:

    >>> positions = sequence_positions(np.zeros((2, 3)), start_index=5)
    >>> ops.convert_to_numpy(positions).tolist()
    [5, 6, 7]
    """
    return start_index + ops.arange(ops.shape(inputs)[axis], dtype="int32")


def relative_positions(query_positions: Any, key_positions: Any) -> Any:
    """Computes key position minus query position.

    Args:
        query_positions: int tensor `(query_length,)` or `(batch, query_length)`.
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`.

    Returns:
        int32 tensor `(query_length, key_length)`, or
        `(batch, query_length, key_length)` if either positions have an axis for
        the batch; negative where the key comes first.

    Example:

    >>> relative = relative_positions(np.array([4, 5]), np.array([3, 4, 5]))
    >>> ops.convert_to_numpy(relative).tolist()
    [[-1, 0, 1], [-2, -1, 0]]
    """
    queries = ops.expand_dims(ops.cast(query_positions, "int32"), -1)
    return ops.expand_dims(ops.cast(key_positions, "int32"), -2) - queries
