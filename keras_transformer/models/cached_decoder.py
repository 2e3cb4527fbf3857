"""The base class of models with a decoder stack, embeddings and caches."""

import abc
from collections.abc import Callable
from typing import Any, Protocol, Self, TypedDict

import keras
from keras import ops

from keras_transformer.layers import DecoderStack, PositionScheme
from keras_transformer.layers.embedding import Embedding
from keras_transformer.layers.positions.scheme import copy_scheme
from keras_transformer.layers.residual import make_normalization
from keras_transformer.models.generative_model import GenerativeModel
from keras_transformer.types import Options, Shape, Size, Tensor, TokenIds


class Caches(Protocol):
    """The keys and values of all beams."""

    def reordered(self, parents: Tensor) -> Self:
        """Replaces the history of each beam with that of its parent."""
        ...

    def extended(self, max_length: Size) -> Self:
        """Makes room for more steps."""
        ...


class DecoderState(TypedDict, total=False):
    """The state of decoding.

    Attributes:
        caches: keys and values.
        output_kernel: float tensor `(hidden_dim, vocabulary_size)`, the transposed
            embeddings, if the output shares them.
    """

    caches: Any
    output_kernel: Tensor


class CachedDecoder(GenerativeModel):
    """Base class of models whose decoder stack predicts the next token.

    Attributes:
        hidden_dim: int, width of the model.
        decoder: the decoder.
        tie_embeddings: `"none"` if the output has a separate matrix.
        output_bias: whether the logits have a bias.
        target_embedding: the embedding of the target tokens.
        output_dense: the layer of the logits; `None` if the embedding is the matrix.
        tied_output_bias: the bias of the logits without `output_dense`, or `None`.
        normalize_embeddings: whether a normalisation follows the embeddings.
        residual_options: further arguments of each `Residual`.
        layer_norm_epsilon: float, epsilon of the normalisations.
    """

    hidden_dim: int
    decoder: DecoderStack
    tie_embeddings: str
    output_bias: bool
    target_embedding: keras.layers.Embedding
    output_dense: Any
    tied_output_bias: keras.Variable | None
    normalize_embeddings: bool
    residual_options: Options
    layer_norm_epsilon: float

    @abc.abstractmethod
    def embed_target(
        self,
        token_ids: TokenIds,
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embeds target tokens and adds their positions."""

    def _embedding(self, name: str, vocabulary_size: int) -> keras.layers.Embedding:
        is_output = name != "source" and self.tie_embeddings != "none"
        kind = Embedding if is_output else keras.layers.Embedding
        embedding = kind(
            vocabulary_size,
            self.hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=self.hidden_dim**-0.5
            ),
            dtype=self.dtype_policy,
            name=f"{name}_embedding",
        )
        embedding.build((None, None))
        return embedding

    def _encoding(self, scheme: PositionScheme | None) -> Any:
        """Returns a built copy of a scheme that is added to the embeddings."""
        if scheme is None or not scheme.added_to_inputs:
            return None
        encoding = copy_scheme(scheme, self.dtype_policy)
        encoding.build((None, None, self.hidden_dim))
        return encoding

    def _embedding_norm(self) -> Any:
        """Returns the normalisation of the embeddings, of the kind in the blocks."""
        if not self.normalize_embeddings:
            return None
        kind = self.residual_options.get("normalization") or "layer"
        norm = make_normalization(kind, self.layer_norm_epsilon, self.dtype_policy)
        assert norm is not None
        norm.build((None, None, self.hidden_dim))
        return norm

    def _build_output(self, shape: Shape) -> None:
        self.output_dense = None
        self.tied_output_bias = None
        if self.tie_embeddings == "none":
            self.output_dense = keras.layers.Dense(
                self.target_vocabulary_size,
                use_bias=self.output_bias,
                dtype=self.dtype_policy,
                name="output",
            )
            self.output_dense.build(shape)
        elif self.output_bias:
            self.tied_output_bias = self.add_weight(
                shape=(self.target_vocabulary_size,),
                initializer="zeros",
                name="output_bias",
            )

    def compute_logits(self, decoded: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Computes the logits from the outputs of the decoder.

        Args:
            decoded: tensor `(batch, target_length, hidden_dim)`.
            kernel: tensor `(hidden_dim, vocabulary_size)`, the transposed embeddings,
                if they have been transposed; see `prepare_state`.

        Returns:
            Tensor `(batch, target_length, vocabulary_size)` in the compute dtype.
        """
        if self.output_dense is not None:
            return self.output_dense(decoded)
        kernel = self.transposed_embeddings() if kernel is None else kernel
        bias = self.tied_output_bias
        logits = ops.matmul(decoded, kernel)
        return logits if bias is None else logits + ops.cast(bias, logits.dtype)

    def transposed_embeddings(self) -> Tensor:
        """Returns the output layer's kernel if it shares the embedding's weights.

        Returns:
            Tensor `(hidden_dim, vocabulary_size)` in the compute dtype.
        """
        embeddings = ops.cast(self.target_embedding.embeddings, self.compute_dtype)
        return ops.transpose(embeddings)

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Prints the layers as `keras.Model.summary` does, and the tied output."""
        super().summary(line_length, positions, print_fn, **kwargs)
        if self.tie_embeddings != "none":  # Otherwise it is a row of the table.
            size = self.target_vocabulary_size
            bias = f" and a bias ({size:,} params)" if self.output_bias else ""
            (print_fn or print)(
                f" Logits: (None, None, {size}), weights of "
                f"{self.target_embedding.name}{bias}"
            )

    def prepare_state(self, state: DecoderState) -> DecoderState:
        """Adds the transposed weights of the embedding, if the output shares them."""
        if self.tie_embeddings == "none":
            return state
        return {**state, "output_kernel": self.transposed_embeddings()}

    def reorder_state(self, state: DecoderState, parents: Tensor) -> DecoderState:
        """Replaces the history of each beam; see `DecodingModel.reorder_state`."""
        return {**state, "caches": state["caches"].reordered(parents)}

    def extend_state(self, state: DecoderState, max_length: Size) -> DecoderState:
        """Makes room for more steps; see `DecodingModel.extend_state`."""
        return {**state, "caches": state["caches"].extended(max_length)}

    def take_state(self, state: DecoderState, rows: Tensor) -> DecoderState:
        """Selects rows of the batch; see `DecodingModel.take_state`."""
        rest = {name: x for name, x in state.items() if name != "output_kernel"}
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), rest)
        return {**state, **taken}
