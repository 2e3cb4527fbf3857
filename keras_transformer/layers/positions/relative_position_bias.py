"""Relative position bias, as in T5."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.positions.logit_bias import add_bias
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    relative_positions,
)


@keras.saving.register_keras_serializable("keras_transformer")
class RelativePositionBias(PositionScheme):
    """Adds to attention logits what it has learned for each distance and head.

    Distances fall into buckets: half of them for later keys, half for the
    others; of each half, the first half is a bucket for every distance, and the
    rest grow logarithmically up to `max_distance`, from where all distances share
    the last. So any length works, whatever was seen in training. In a causal
    decoder, the buckets of later keys stay unused.

    Args:
        num_buckets: even int, 4 or more, number of buckets.
        max_distance: int above `num_buckets / 4`, the distance in tokens
            from which on all are alike.
        embeddings_initializer: initializer of the table
            `(num_buckets, num_heads)`.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        attention_logits: float tensor
            `(batch, num_heads, query_length, key_length)`.
        query_positions: int tensor `(query_length,)` or
            `(batch, query_length)`; 0, 1, 2, … if `None`.
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`;
            0, 1, 2, … if `None`.

    Returns:
        Tensor of the shape and dtype of `attention_logits`.

    Raises:
        ValueError: if `num_buckets` or `max_distance` is out of range.

    Example:

    >>> layer = RelativePositionBias(num_buckets=4, max_distance=3)
    >>> tuple(layer(np.zeros((2, 3, 5, 7), "float32")).shape)
    (2, 3, 5, 7)
    >>> tuple(layer.embeddings.shape)
    (4, 3)

    References:
        - [Raffel et al., 2020](https://arxiv.org/abs/1910.10683), section 2.1
    """

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        embeddings_initializer: Any = "random_normal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not isinstance(num_buckets, int) or num_buckets < 4 or num_buckets % 2:
            raise ValueError(
                "`num_buckets` must be an even int of 4 or more; received "
                f"`num_buckets={num_buckets!r}`."
            )
        if not isinstance(max_distance, int) or max_distance <= num_buckets // 4:
            raise ValueError(
                "`max_distance` must be an int above `num_buckets / 4`; received "
                f"`max_distance={max_distance!r}`, `num_buckets={num_buckets}`."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        self.buckets = bucket_of_each_distance(self.num_buckets, self.max_distance)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, input_shape[1]),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def call(
        self,
        attention_logits: Any,
        query_positions: Any = None,
        key_positions: Any = None,
    ) -> Any:
        return add_bias(self, attention_logits, query_positions, key_positions)

    def bias(self, query_positions: Any, key_positions: Any) -> Any:
        # (2 * max_distance + 1, num_heads), from -max_distance to max_distance
        of_distance = ops.take(self.embeddings, self.buckets, axis=0)
        relative = relative_positions(query_positions, key_positions)
        index = ops.clip(relative, -self.max_distance, self.max_distance)
        bias = ops.take(of_distance, index + self.max_distance, axis=0)
        return ops.cast(ops.moveaxis(bias, -1, -3), "float32")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }


def bucket_of_each_distance(num_buckets: int, max_distance: int) -> np.ndarray:
    """Assigns the distances to buckets.

    With `h = num_buckets / 2` buckets a side and `e = ⌊h / 2⌋` exact ones, a
    distance `d ≥ e` falls into bucket
    `min(h - 1, e + ⌊(h - e) · log(d / e) / log(max_distance / e)⌋)`, plus `h` for
    later keys. A bucket begins where the logarithm reaches a whole number,
    which is found by integers: floating-point logarithms differ between
    machines.

    Args:
        num_buckets: even int, 4 or more, number of buckets.
        max_distance: int above `num_buckets / 4`, in tokens.

    Returns:
        int32 array `(2 * max_distance + 1,)`, the buckets of the distances
        `-max_distance, …, max_distance` (key position - query position).

    Example:

    >>> bucket_of_each_distance(num_buckets=8, max_distance=5).tolist()
    [3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7]
    """
    side = num_buckets // 2
    exact = side // 2
    steps = side - exact
    buckets = [
        min(d, exact)
        + sum(
            d**steps * exact**step >= max_distance**step * exact**steps
            for step in range(1, steps)
        )
        for d in range(max_distance + 1)
    ]
    later = [side + bucket for bucket in buckets[1:]]
    return np.array([*buckets[::-1], *later], "int32")
