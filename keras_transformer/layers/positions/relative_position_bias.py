"""Relative position bias, as in T5."""

import bisect

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import (
    AttentionBias,
    relative_positions,
)
from keras_transformer.layers.sub_layers import Initializer, known_size
from keras_transformer.types import Config, Shape, Tensor

# The table of the buckets takes eight bytes for each distance.
MOST_BUCKETS, MOST_DISTANCE = 4096, 2**20


@keras.saving.register_keras_serializable("keras_transformer")
class RelativePositionBias(AttentionBias):
    """Learned bias of the attention logits for each head and bucket of distances.

    Half of the buckets are for later keys, and half for the other keys. In each half,
    the first half of the buckets contains one distance each, and the others grow
    logarithmically up to `max_distance`. All larger distances share the last bucket,
    so that the length has no limit. A causal decoder does not use the buckets of
    later keys. With `bidirectional=False`, as in the decoder of T5, there are none:
    all buckets are one such half, and a later key has the bucket of distance 0.

    Args:
        num_buckets: even int from 4 to 4096, number of buckets; with
            `bidirectional=False` any int from 2 on.
        max_distance: int above `num_buckets / 4`, or above `num_buckets / 2` with
            `bidirectional=False`, and at most 1,048,576. All distances from this
            number of tokens on share a bucket.
        embeddings_initializer: initializer of the table
            `(num_buckets, num_heads)`.
        bidirectional: bool, whether later keys have separate buckets.
        shared: bool, whether all blocks of a stack have one table, as in T5.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        attention_logits: float tensor
            `(batch, num_heads, query_length, key_length)`.
        query_positions: int tensor `(query_length,)` or
            `(batch, query_length)`. Defaults to 0, 1, 2, ….
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`.
            Defaults to 0, 1, 2, ….

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

    @explains_arguments
    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        embeddings_initializer: Initializer = "random_normal",
        bidirectional: bool = True,
        shared: bool = False,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        sides = 2 if bidirectional else 1
        is_int = isinstance(num_buckets, int)
        in_range = is_int and 2 * sides <= num_buckets <= MOST_BUCKETS
        if not in_range or num_buckets % sides:
            kind = "an even int from 4" if bidirectional else "an int from 2"
            raise ValueError(
                f"`num_buckets` must be {kind} to {MOST_BUCKETS}; received "
                f"`num_buckets={num_buckets!r}`, `bidirectional={bidirectional}`."
            )
        exact = num_buckets // (2 * sides)
        if not (
            isinstance(max_distance, int) and exact < max_distance <= MOST_DISTANCE
        ):
            raise ValueError(
                f"`max_distance` must be an int above `num_buckets / {2 * sides}` and "
                f"of at most {MOST_DISTANCE}; "
                f"received `max_distance={max_distance!r}`, "
                f"`num_buckets={num_buckets}`, `bidirectional={bidirectional}`."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.shared = shared
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Shape) -> None:
        self.buckets = bucket_of_each_distance(
            self.num_buckets, self.max_distance, self.bidirectional
        )
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, known_size(input_shape, 1)),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        # (2 * max_distance + 1, num_heads), from -max_distance to max_distance
        of_distance = ops.take(self.embeddings, self.buckets, axis=0)
        relative = relative_positions(query_positions, key_positions)
        index = ops.clip(relative, -self.max_distance, self.max_distance)
        bias = ops.take(of_distance, index + self.max_distance, axis=0)
        *rows, queries, keys, heads = range(len(bias.shape))
        bias = ops.transpose(bias, (*rows, heads, queries, keys))
        return ops.cast(bias, "float32")

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "bidirectional": self.bidirectional,
            "shared": self.shared,
        }


def bucket_of_each_distance(
    num_buckets: int, max_distance: int, bidirectional: bool = True
) -> np.ndarray:
    """Computes the buckets, int32, of distances from `-max_distance` to `max_distance`.

    A distance is key position - query position. With `h = num_buckets / 2` buckets per
    side (`h = num_buckets` with one side), of which `e = ⌊h / 2⌋` contain one distance
    each, the bucket of a distance `d ≥ e` is
    `min(h - 1, e + ⌊(h - e) · log(d / e) / log(max_distance / e)⌋)`, plus `h` for later
    keys. The function computes with integers, since floating-point logarithms differ
    between machines.
    """
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    steps = side - exact
    distances = range(max_distance + 1)

    def first_distance(step: int) -> int:
        """Returns the least distance of a bucket of several distances."""
        least = max_distance**step * exact**steps
        return bisect.bisect_left(
            distances, least, key=lambda d: d**steps * exact**step
        )

    first_distances = list(map(first_distance, range(1, steps)))
    buckets = np.minimum(distances, exact)
    buckets += np.searchsorted(first_distances, distances, side="right")
    later = buckets[1:] + side if bidirectional else np.zeros(max_distance)
    return np.concatenate([buckets[::-1], later]).astype("int32")
