"""Token embeddings."""

import warnings

import keras

from keras_transformer.types import Tensor, TokenIds


@keras.saving.register_keras_serializable("keras_transformer")
class ScaledEmbedding(keras.layers.Embedding):
    """`keras.layers.Embedding` with outputs multiplied by `sqrt(output_dim)`.

    Use this layer before `PositionalEncoding`. The root mean square of a sinusoidal
    encoding is 0.71, but the initial embeddings of `keras.layers.Embedding` have a
    standard deviation of 0.03: their sum contains little information about the
    tokens until the embeddings have grown. The factor makes the initial embeddings
    larger and lets an optimizer such as Adam change them faster. `Seq2Seq` scales its
    embeddings too.

    Arguments, weights, masks and LoRA are those of `keras.layers.Embedding`.

    Args:
        input_dim: int, size of the vocabulary.
        output_dim: int, size of the embeddings (d_model in the paper).
        **kwargs: the other arguments of `keras.layers.Embedding`, such as
            `embeddings_initializer` and `mask_zero`.

    Call arguments:
        inputs: int tensor `(batch, length)`, token ids.

    Returns:
        Float tensor `(batch, length, output_dim)`.

    Example:

    >>> layer = ScaledEmbedding(3, 4, embeddings_initializer="ones")
    >>> keras.ops.convert_to_numpy(layer(np.array([[2]]))).tolist()
    [[[2.0, 2.0, 2.0, 2.0]]]

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.4
    """

    def call(self, inputs: TokenIds) -> Tensor:
        return super().call(inputs) * self.output_dim**0.5

    def quantized_call(self, inputs: TokenIds) -> Tensor:
        """Returns the embeddings of quantized weights."""
        return super().quantized_call(inputs) * self.output_dim**0.5

    def quantize(self, *args: object, **kwargs: object) -> None:
        # Keras does not quantize subclasses by default.
        super().quantize(*args, **{**kwargs, "type_check": False})


@keras.saving.register_keras_serializable("keras_transformer")
class Embedding(keras.layers.Embedding):
    """Token embedding whose matrix is also the output matrix of a model.

    The class has the name of the Keras class, since files identify layers by name.
    """

    def quantize(self, *args: object, **kwargs: object) -> None:
        """Warns that the layer is not quantized."""
        warnings.warn(
            f"`{self.name}` is not quantized, since its matrix is also the output "
            "matrix.",
            stacklevel=2,
        )
