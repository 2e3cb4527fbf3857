"""Sinusoidal positional encoding."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions.angles import position_angles
from keras_transformer.layers.positions.scheme import PositionScheme


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEncoding(PositionScheme):
    """Adds the sinusoidal positional encoding to its inputs.

    `PE(pos, 2i) = sin(pos / max_wavelength^(2i / hidden_dim))` and
    `PE(pos, 2i + 1) = cos(...)` of the same angle, sines and cosines
    interleaved, positions counted from 0. With `interleaved=False` all sines
    come first, then all cosines: the same numbers in another order, which a
    model that was trained with it needs (Marian's). Any length works, whatever
    was seen in training. The encoding is computed in float32 and cast last:
    positions are not exact in half precision.

    Args:
        max_wavelength: float, the longest wavelength divided by 2π.
        interleaved: whether sines and cosines take turns; if not, the sines are
            the first half of the dimensions (the greater one, if `hidden_dim` is
            odd).
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`; `hidden_dim` may be
            odd.
        start_index: int or int scalar tensor, position of the first token
            (cached decoding).
        positions: int tensor `(length,)` or `(batch, length)`, explicit
            positions in the place of `start_index + 0, 1, 2, …`.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Example:

    >>> layer = PositionalEncoding()
    >>> encoded = layer(np.zeros((1, 2, 4), "float32"))
    >>> ops.convert_to_numpy(encoded)[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    >>> layer = PositionalEncoding(interleaved=False)
    >>> encoded = layer(np.zeros((1, 2, 4), "float32"))
    >>> ops.convert_to_numpy(encoded)[0, 0].tolist()
    [0.0, 0.0, 1.0, 1.0]

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5
    """

    added_to_inputs = True

    def __init__(
        self, max_wavelength: float = 10000, interleaved: bool = True, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.built = True

    def encode(self, inputs: Any, positions: Any) -> Any:
        hidden_dim = inputs.shape[-1]
        angles = position_angles(positions, hidden_dim, self.max_wavelength)
        waves = [ops.sin(angles), ops.cos(angles)]
        if self.interleaved:
            *leading, pairs = ops.shape(angles)
            encoding = ops.reshape(ops.stack(waves, axis=-1), (*leading, 2 * pairs))
        else:
            encoding = ops.concatenate(waves, axis=-1)
        return inputs + ops.cast(encoding[..., :hidden_dim], inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "interleaved": self.interleaved,
        }
