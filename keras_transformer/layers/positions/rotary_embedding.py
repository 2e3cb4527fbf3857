"""Rotary position embedding."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.rotary_scaling import (
    attention_factor,
    check_scaling,
    rotary_angles,
)
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    sequence_positions,
)
from keras_transformer.types import Config, Size, Tensor
from keras_transformer_runtime.arguments import check_ints, check_positive


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

    A `scaling` changes the frequencies `1 / max_wavelength^(2i / key_dim)`, so that a
    model reads longer sequences than those of its training. It is a dictionary with
    the entries `"type"` and `"factor"`, and the other entries of the type:

    - `"linear"`: all frequencies are divided by `factor`.
    - `"dynamic"`: `max_wavelength` grows with `factor` and the longest position, as
      soon as it is beyond `original_max_length`. The longest position is the maximum of
      the positions of a row in the call, padding included. A key in a cache keeps the
      rotation of the call that has written it, as in transformers. Cached steps then
      differ from one call on the whole sequence.
    - `"yarn"`: frequencies with more than `beta_fast` (32) rotations within
      `original_max_length` are kept, those with fewer than `beta_slow` (1) are divided
      by `factor`, and those between are interpolated; `truncate` (`True`) rounds the
      limits to whole dimensions. Queries and keys are multiplied by
      `attention_factor`, by default `0.1 * log(factor) + 1`, or by the ratio of
      `0.1 * mscale * log(factor) + 1` and `0.1 * mscale_all_dim * log(factor) + 1`.
    - `"llama3"`: as `"yarn"`, with the limits `high_frequency_factor` and
      `low_frequency_factor` in rotations within `original_max_length`, and without
      an `attention_factor`.

    Args:
        max_wavelength: float, the longest wavelength divided by 2π.
        scaling: dictionary, or `None`.
        rotary_dim: even int, number of the first dimensions that are rotated, as in
            GPT-NeoX and Phi. It takes the place of `key_dim` in the formulas. The other
            dimensions are not changed. Defaults to `key_dim`.
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
        ValueError: if `key_dim` or `rotary_dim` is odd, `rotary_dim` is above
            `key_dim`, `max_wavelength` is not finite and above 0, or an entry of
            `scaling` is missing, unknown or out of range.

    Example:

    >>> layer = RotaryEmbedding()
    >>> heads = np.array([[[[1.0, 0.0]], [[1.0, 0.0]]]], "float32")
    >>> ops.convert_to_numpy(layer(heads))[0, :, 0].round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]

    >>> scaling = {"type": "linear", "factor": 2.0}
    >>> heads = RotaryEmbedding(scaling=scaling)(heads, positions=np.array([0, 2]))
    >>> ops.convert_to_numpy(heads)[0, :, 0].round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864), section 3.2,
          equations 15 and 34
        - [Chen et al., 2023](https://arxiv.org/abs/2306.15595) (linear scaling)
        - [Peng et al., 2023](https://arxiv.org/abs/2309.00071) (YaRN; dynamic scaling
          in appendix B.1)
        - [Llama Team, 2024](https://arxiv.org/abs/2407.21783) (Llama 3)
    """

    @explains_arguments
    def __init__(
        self,
        max_wavelength: float = 10000,
        scaling: Mapping[str, Any] | None = None,
        rotary_dim: int | None = None,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        check_positive(max_wavelength=max_wavelength)
        check_ints(1, optional=True, rotary_dim=rotary_dim)
        self.max_wavelength = max_wavelength
        self.scaling = check_scaling(scaling, max_wavelength)
        self.rotary_dim = rotary_dim
        is_dynamic = self.scaling is not None and self.scaling["type"] == "dynamic"
        self.uses_longest_position = is_dynamic
        self.built = True

    def call(
        self, inputs: Tensor, start_index: Size = 0, positions: Tensor | None = None
    ) -> Tensor:
        if positions is None:
            positions = sequence_positions(inputs, start_index)
        return self.rotate(inputs, positions)

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        dim = self._checked_dim(heads.shape[-1])
        angles = rotary_angles(positions, dim, self.max_wavelength, self.scaling)
        sin, cos = (ops.expand_dims(f(angles), -2) for f in (ops.sin, ops.cos))
        factor = attention_factor(self.scaling)
        if factor != 1.0:
            sin, cos = factor * sin, factor * cos
        x, y = heads[..., : dim // 2], heads[..., dim // 2 : dim]
        rotated_x = ops.multiply(x, cos) - ops.multiply(y, sin)
        rotated_y = ops.multiply(x, sin) + ops.multiply(y, cos)
        rotated = [ops.cast(each, heads.dtype) for each in (rotated_x, rotated_y)]
        if dim < heads.shape[-1]:
            rotated.append(heads[..., dim:])
        return ops.concatenate(rotated, axis=-1)

    def _checked_dim(self, key_dim: int) -> int:
        """Returns the number of dimensions that are rotated."""
        dim, name = self.rotary_dim, "rotary_dim"
        if dim is None:
            dim, name = key_dim, "key_dim"
        if dim % 2:
            raise ValueError(
                f"`{name}` must be even, as dimensions are rotated in pairs; received "
                f"`{name}={dim}`. Choose another width or number of heads."
            )
        if dim > key_dim:
            raise ValueError(
                "`rotary_dim` must be at most `key_dim`; received "
                f"`rotary_dim={dim}`, `key_dim={key_dim}`."
            )
        return dim

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "scaling": None if self.scaling is None else dict(self.scaling),
            "rotary_dim": self.rotary_dim,
        }
