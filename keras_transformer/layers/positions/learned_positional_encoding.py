"""Learned positional encoding."""

from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    sequence_positions,
)


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositionalEncoding(PositionScheme):
    """Adds a learned vector for every position to its inputs.

    The table `(max_length, hidden_dim)` is the one weight, and that of
    `keras_nlp.layers.PositionEmbedding`. It knows no position from `max_length`
    on: a sequence whose length says so is an error, and what only the data say
    (traced `start_index`, `positions`) makes the vector NaN. A clipped position
    would pass unnoticed.

    Args:
        max_length: positive int, number of positions, in tokens.
        embeddings_initializer: initializer of the table.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        start_index: int or int scalar tensor, position of the first token
            (cached decoding).
        positions: int tensor `(length,)` or `(batch, length)`, explicit
            positions in the place of `start_index + 0, 1, 2, …`.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: if `max_length` is not a positive int, or the sequence is
            longer.

    Example:

    >>> layer = LearnedPositionalEncoding(max_length=7)
    >>> tuple(layer(np.zeros((2, 3, 5), "float32")).shape)
    (2, 3, 5)
    >>> tuple(layer.embeddings.shape)
    (7, 5)

    References:
        - [Gehring et al., 2017](https://arxiv.org/abs/1705.03122), section 3.1
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5
          and table 3, row E
    """

    added_to_inputs = True
    max_length: int

    def __init__(
        self,
        max_length: int,
        embeddings_initializer: Any = "random_normal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, max_length=max_length)
        self.max_length = int(max_length)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, input_shape[-1]),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def call(self, inputs: Any, start_index: Any = 0, positions: Any = None) -> Any:
        if positions is None:
            self._check_length(inputs.shape[-2], start_index)
            positions = sequence_positions(inputs, start_index, axis=-2)
        return self.encode(inputs, positions)

    def _check_length(self, length: int | None, start_index: Any) -> None:
        start = start_index if isinstance(start_index, int) else 0
        if isinstance(length, int) and start + length > self.max_length:
            raise ValueError(
                "`max_length` must be at least `start_index` and the length of the "
                f"sequence together; received `max_length={self.max_length}`, "
                f"`start_index={start_index}`, a sequence of {length} tokens. Shorten "
                "the sequence, or make the layer with a greater `max_length`."
            )

    def encode(self, inputs: Any, positions: Any) -> Any:
        positions = ops.cast(positions, "int32")
        known = ops.clip(positions, 0, self.max_length - 1)
        inside = ops.equal(positions, known)
        vectors = ops.take(self.embeddings, known, axis=0)
        vectors = ops.where(inside[..., None], vectors, float("nan"))
        return inputs + ops.cast(vectors, inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }
