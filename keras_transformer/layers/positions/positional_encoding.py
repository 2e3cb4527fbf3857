"""Sinusoidal positional encoding."""

import keras
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    position_angles,
    sinusoid_frequencies,
)
from keras_transformer.types import Config, Tensor
from keras_transformer_runtime.arguments import check_ints, check_positive


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEncoding(PositionScheme):
    """Adds the sinusoidal positional encoding to the inputs.

    `PE(pos, 2i) = sin(pos / max_wavelength^(2i / hidden_dim))` and
    `PE(pos, 2i + 1) = cos(...)` of the same angle, with positions from 0. With
    `interleaved=False`, all sines precede all cosines, as in the models of Marian.
    The models of fairseq, such as M2M-100, have in addition `offset=2` and
    `max_wavelength=10000 ** (half / (half - 1))` with `half = hidden_dim / 2`. The
    layer has no weights and no limit of the length. The encoding is computed in
    float32, since half precision does not represent positions exactly.

    The root mean square of the encoding is 0.71, but the initial embeddings of
    `keras.layers.Embedding` have a standard deviation of 0.03. Use `ScaledEmbedding`,
    which multiplies them by `sqrt(hidden_dim)` as in the paper.

    Args:
        max_wavelength: float, the longest wavelength divided by 2π.
        interleaved: bool, whether sines and cosines alternate. Otherwise, the sines
            are the first half of the dimensions (the larger half if `hidden_dim` is
            odd).
        offset: int of at least 0, which is added to all positions.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`. `hidden_dim` may be
            odd.
        start_index: int or int scalar tensor, position of the first token.
        positions: int tensor `(length,)` or `(batch, length)`. Defaults to
            `start_index + 0, 1, 2, …`.

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

    Raises:
        ValueError: if `max_wavelength` is not finite and above 0, or `offset` is not
            an int of at least 0.

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections 3.4
          and 3.5
    """

    added_to_inputs = True

    @explains_arguments
    def __init__(
        self,
        max_wavelength: float = 10000,
        interleaved: bool = True,
        offset: int = 0,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        check_positive(max_wavelength=max_wavelength)
        check_ints(0, offset=offset)
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.offset = offset
        self.built = True

    def encode(self, inputs: Tensor, positions: Tensor) -> Tensor:
        hidden_dim = inputs.shape[-1]
        frequencies = sinusoid_frequencies(hidden_dim, self.max_wavelength)
        angles = position_angles(ops.add(positions, self.offset), frequencies)
        waves = [ops.sin(angles), ops.cos(angles)]
        if self.interleaved:
            *leading, pairs = ops.shape(angles)
            encoding = ops.reshape(ops.stack(waves, axis=-1), (*leading, 2 * pairs))
        else:
            encoding = ops.concatenate(waves, axis=-1)
        return inputs + ops.cast(encoding[..., :hidden_dim], inputs.dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "interleaved": self.interleaved,
            "offset": self.offset,
        }
