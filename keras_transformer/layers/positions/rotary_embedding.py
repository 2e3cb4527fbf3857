"""Rotary position embedding."""

import keras
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    position_angles,
    sequence_positions,
)
from keras_transformer.types import Config, Size, Tensor
from keras_transformer_runtime.arguments import check_positive


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryEmbedding(PositionScheme):
    """Rotates queries and keys by angles that are proportional to their positions.

    Dimensions `i` and `i + key_dim / 2` are rotated together by
    `position / max_wavelength^(2i / key_dim)`, as in
    `keras_hub.layers.RotaryEmbedding`, LLaMA and GPT-NeoX. The paper pairs adjacent
    dimensions instead, which differs in the order of the dimensions only. The product
    of a rotated query and a rotated key depends only on the difference of their
    positions. The layer has no weights and no limit of the length. The rotation is
    computed in float32.

    Args:
        max_wavelength: float, the longest wavelength divided by 2π.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, num_heads, key_dim)`, queries or
            keys. `key_dim` must be even.
        start_index: int or int scalar tensor, position of the first token.
        positions: int tensor `(length,)` or `(batch, length)`. Defaults to
            `start_index + 0, 1, 2, …`.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: if `key_dim` is odd, or `max_wavelength` is not finite and above 0.

    Example:

    >>> layer = RotaryEmbedding()
    >>> heads = np.array([[[[1.0, 0.0]], [[1.0, 0.0]]]], "float32")
    >>> ops.convert_to_numpy(layer(heads))[0, :, 0].round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864), section 3.2,
          equations 15 and 34
    """

    @explains_arguments
    def __init__(self, max_wavelength: float = 10000, **kwargs: object):
        super().__init__(**kwargs)
        check_positive(max_wavelength=max_wavelength)
        self.max_wavelength = max_wavelength
        self.built = True

    def call(
        self, inputs: Tensor, start_index: Size = 0, positions: Tensor | None = None
    ) -> Tensor:
        if positions is None:
            positions = sequence_positions(inputs, start_index)
        return self.rotate(inputs, positions)

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        key_dim = heads.shape[-1]
        if key_dim % 2:
            raise ValueError(
                "`key_dim` must be even, as dimensions are rotated in pairs; received "
                f"`key_dim={key_dim}`. Choose another width or number of heads."
            )
        angles = position_angles(positions, key_dim, self.max_wavelength)
        sin, cos = (ops.expand_dims(f(angles), -2) for f in (ops.sin, ops.cos))
        x, y = ops.split(heads, 2, axis=-1)
        rotated_x = ops.multiply(x, cos) - ops.multiply(y, sin)
        rotated_y = ops.multiply(x, sin) + ops.multiply(y, cos)
        rotated = ops.concatenate([rotated_x, rotated_y], axis=-1)
        return ops.cast(rotated, heads.dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
