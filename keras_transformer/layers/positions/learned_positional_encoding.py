"""Learned positional encoding."""

import keras
from keras import ops

from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    sequence_positions,
)
from keras_transformer.layers.sub_layers import Initializer, known_size
from keras_transformer.types import Config, Shape, Size, Tensor
from keras_transformer_runtime.arguments import check_ints


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositionalEncoding(PositionScheme):
    """Adds a learned vector for each position to the inputs.

    The only weight is the table `(max_length, hidden_dim)`, as in
    `keras_hub.layers.PositionEmbedding`. A sequence that is too long raises an error
    if its length is known. Otherwise (traced `start_index`, `positions`), the output
    is NaN at positions from `max_length` on.

    Args:
        max_length: positive int, number of positions.
        embeddings_initializer: initializer of the table.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(batch, length, hidden_dim)`.
        start_index: int or int scalar tensor, position of the first token.
        positions: int tensor `(length,)` or `(batch, length)`. Defaults to
            `start_index + 0, 1, 2, …`.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: if `max_length` is not a positive int or the sequence is
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

    @explains_arguments
    def __init__(
        self,
        max_length: int,
        embeddings_initializer: Initializer = "random_normal",
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        check_ints(1, max_length=max_length)
        self.max_length = int(max_length)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Shape) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, known_size(input_shape)),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def call(
        self, inputs: Tensor, start_index: Size = 0, positions: Tensor | None = None
    ) -> Tensor:
        if positions is None:
            self._check_length(inputs.shape[-2], start_index)
            positions = sequence_positions(inputs, start_index, axis=-2)
        return self.encode(inputs, positions)

    def _check_length(self, length: int | None, start_index: Size) -> None:
        start = start_index if isinstance(start_index, int) else 0
        if isinstance(length, int) and start + length > self.max_length:
            raise ValueError(
                "`max_length` must be at least the sum of `start_index` and the length "
                f"of the sequence; received `max_length={self.max_length}`, "
                f"`start_index={start_index}`, a sequence of {length} tokens. Shorten "
                "the sequence or create the layer with a larger `max_length`."
            )

    def encode(self, inputs: Tensor, positions: Tensor) -> Tensor:
        positions = ops.cast(positions, "int32")
        clipped = ops.clip(positions, 0, self.max_length - 1)
        is_inside = ops.equal(positions, clipped)
        vectors = ops.take(self.embeddings, clipped, axis=0)
        vectors = ops.where(is_inside[..., None], vectors, float("nan"))
        return inputs + ops.cast(vectors, inputs.dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }
