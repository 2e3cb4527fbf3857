"""Base class of position schemes, and functions of positions."""

from collections.abc import Sequence
from typing import TypeAlias, overload

import keras
from keras import ops

from keras_transformer.types import Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class PositionScheme(keras.layers.Layer):
    """Position scheme: how a model represents the order of its inputs.

    Attention does not depend on the order of its inputs. A scheme adds the order in
    one of three places, each of which is a method that a subclass overrides:
    `encode` adds an encoding to the inputs of a model, `rotate` rotates queries and
    keys, and `bias` computes a bias of the attention logits. Positions start at 0.
    They are explicit arguments, so that a scheme also works with caches and with
    beams as query positions.

    To write a scheme, override one of the three methods. Set `added_to_inputs = True`
    if this method is `encode`. Create weights in `build`: a model calls it with the
    shape `(batch, length, hidden_dim)` of its inputs if `added_to_inputs`; otherwise
    an attention layer calls it with the shape
    `(batch, num_heads, query_length, key_length)` of its logits.

    `call` applies the scheme on its own. In this class, it takes the inputs, and
    `start_index` or `positions`, and calls `encode`.

    Attributes:
        added_to_inputs: bool. `True` if the scheme acts once, on the inputs of a
            model, by `encode`. `False` if it acts in each self-attention, by `rotate`
            and `bias`.
        max_length: int, the number of positions, or `None` without a limit.
        shared: bool, whether all blocks of a stack have the same weights of the
            scheme. Otherwise each block has its own.
        uses_longest_position: bool. `True` if `rotate` depends on the maximum of the
            positions of a row. A model then leaves the padding of a prompt out.

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
    shared = False
    uses_longest_position = False

    def __init__(self, **kwargs: object):
        super().__init__(**kwargs)
        self.supports_masking = True

    def encode(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """Adds the encoding of the positions to the inputs of a model.

        Args:
            inputs: float tensor `(batch, length, hidden_dim)`.
            positions: int tensor `(length,)` or `(batch, length)`.

        Returns:
            Tensor of the shape and dtype of `inputs`. This class returns `inputs`.
        """
        return inputs

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotates queries or keys by their positions.

        Args:
            heads: float tensor `(batch, length, num_heads, key_dim)`.
            positions: int tensor `(length,)` or `(batch, length)`.

        Returns:
            Tensor of the shape and dtype of `heads`. This class returns `heads`.
        """
        return heads

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Computes the bias of the attention logits.

        Args:
            query_positions: int tensor `(query_length,)` or
                `(batch, query_length)`.
            key_positions: int tensor `(key_length,)` or `(batch, key_length)`.

        Returns:
            float32 tensor `(num_heads, query_length, key_length)`, or
            `(batch, num_heads, query_length, key_length)` if the queries or the keys
            have positions with a batch axis. `num_heads` may be 1. `None` = no bias.
            This class returns `None`.
        """
        return None

    def call(
        self, inputs: Tensor, start_index: Size = 0, positions: Tensor | None = None
    ) -> Tensor:
        if positions is None:
            positions = sequence_positions(inputs, start_index, axis=-2)
        return self.encode(inputs, positions)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


class AttentionBias(PositionScheme):
    """A scheme that adds its `bias` to attention logits, in float32."""

    def call(  # type: ignore[override] # logits in place of inputs
        self,
        attention_logits: Tensor,  # (batch, num_heads, query_length, key_length)
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Tensor:
        if query_positions is None:
            query_positions = sequence_positions(attention_logits, axis=2)
        if key_positions is None:
            key_positions = sequence_positions(attention_logits, axis=3)
        bias = self.bias(query_positions, key_positions)
        total = attention_logits if bias is None else ops.add(attention_logits, bias)
        return ops.cast(total, attention_logits.dtype)


# The dtype of a layer, or its policy.
DType: TypeAlias = str | keras.DTypePolicy | None
# A scheme, or a pair of those of an encoder and of a decoder, each of them or `None`.
Positions: TypeAlias = (
    PositionScheme | tuple[PositionScheme | None, PositionScheme | None] | None
)


@overload
def copy_scheme(scheme: None, dtype: DType) -> None: ...
@overload
def copy_scheme(scheme: PositionScheme, dtype: DType) -> PositionScheme: ...
def copy_scheme(scheme: PositionScheme | None, dtype: DType) -> PositionScheme | None:
    """Copies a scheme without its weights; the copy has another dtype or policy.

    A scheme that a stack has built for all of its blocks is returned as it is.
    """
    check_scheme(scheme)
    if scheme is None or (scheme.shared and scheme.built):
        return scheme
    return type(scheme).from_config({**scheme.get_config(), "dtype": dtype})


def keep_untracked(layer: object, scheme: PositionScheme | None) -> None:
    """Sets the attribute `positions` of a layer without tracking it as a sub-layer.

    The layer uses only copies of the scheme.
    """
    check_scheme(scheme)
    object.__setattr__(layer, "positions", scheme)


def check_scheme(scheme: object) -> None:
    """Raises `TypeError` if `positions` is neither a scheme nor `None`."""
    if scheme is not None and not isinstance(scheme, PositionScheme):
        raise TypeError(
            "`positions` must be a `PositionScheme`, such as `RotaryEmbedding()`; "
            f"received `positions={scheme!r}`."
        )


def position_pair(
    positions: Positions,
) -> tuple[PositionScheme | None, PositionScheme | None]:
    """Returns the schemes of an encoder and of a decoder."""
    pair = positions if isinstance(positions, tuple | list) else (positions, positions)
    allowed = (PositionScheme, type(None) if pair is positions else PositionScheme)
    if len(pair) != 2 or not all(isinstance(each, allowed) for each in pair):
        raise TypeError(
            "`positions` must be a `PositionScheme`, such as `RotaryEmbedding()`, or a "
            "pair of them, for the encoder and the decoder; received "
            f"`positions={positions!r}`."
        )
    source, target = pair
    return source, target


def sequence_positions(inputs: Tensor, start_index: Size = 0, axis: int = 1) -> Tensor:
    """Returns `start_index + 0, 1, 2, …`, int32, for the length of an axis."""
    return start_index + ops.arange(ops.shape(inputs)[axis], dtype="int32")


def relative_positions(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Computes key position minus query position, `(…, query_length, key_length)`.

    The int32 result has a batch axis if the positions of queries or of keys have one.
    """
    queries = ops.expand_dims(ops.cast(query_positions, "int32"), -1)
    return ops.expand_dims(ops.cast(key_positions, "int32"), -2) - queries


def sinusoid_frequencies(dim: int, max_wavelength: float) -> list[float]:
    """Computes `1 / max_wavelength^(2i / dim)` for each pair `i` of dimensions."""
    # `torch.compile` cannot trace arrays of NumPy as arguments of `keras.ops`.
    return [float(max_wavelength) ** (-i / dim) for i in range(0, dim, 2)]


def position_angles(positions: Tensor, frequencies: Sequence[float]) -> Tensor:
    """Computes the products of positions and frequencies.

    Positions `(…, length)` have angles `(…, length, len(frequencies))` in radians,
    float32, as half precision does not represent positions and angles exactly.
    """
    rates = ops.convert_to_tensor(frequencies, dtype="float32")
    return ops.cast(positions, "float32")[..., None] * rates
