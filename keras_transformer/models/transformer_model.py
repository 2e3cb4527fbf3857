"""What `Seq2Seq` and `CausalLM` share: embeddings, logits and configuration."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import keras
from keras import ops

from keras_transformer.decoding import ModelState
from keras_transformer.layers import DecoderStack, PositionScheme
from keras_transformer.layers.embedding import Embedding
from keras_transformer.layers.positions.scheme import copy_scheme
from keras_transformer.layers.residual import make_normalization
from keras_transformer.layers.transformer_layer import (
    MODEL_OBJECTS,
    deserialize_objects,
)
from keras_transformer.models.beam_mask import axes_of_state
from keras_transformer.models.file_checks import check_fits_memory
from keras_transformer.models.generative_model import GenerativeModel
from keras_transformer.models.vocabularies import (
    VocabularySizes,
    check_tying,
    find_special_ids,
)
from keras_transformer.training.token_trainer import TokenTrainer
from keras_transformer.types import Config, Options, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_one_of

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class OutputState(TypedDict, total=False):
    """The part of the state of decoding that belongs to the logits."""

    # float (hidden_dim, vocabulary_size), the transposed embeddings for all steps, if
    # the output shares them
    output_kernel: Tensor


class TransformerModel(GenerativeModel, TokenTrainer):
    """Base class of models whose decoder stack predicts the next token."""

    hidden_dim: int
    vocabulary_size: int | None  # of both sides; None = two vocabularies
    decoder: DecoderStack
    positions: Any  # a scheme or a pair of them, which Keras does not track
    tie_embeddings: str  # the matrices that share their weights
    scale_embeddings: bool  # whether token embeddings are multiplied by √hidden_dim
    normalize_embeddings: bool  # whether `target_norm` follows the embeddings
    output_bias: bool | str  # whether the logits have a bias, or "frozen"
    target_embedding: keras.layers.Embedding
    target_encoding: PositionScheme | None  # added to the embeddings
    target_norm: keras.layers.Layer | None
    embedding_dropout: keras.layers.Dropout
    output_dense: keras.layers.Dense | None  # None if the embedding is the matrix
    logits_bias: keras.Variable | None
    config_names: ClassVar[tuple[str, ...]]  # JSON arguments, without the blocks'
    # The arguments of the blocks.
    intermediate_dim: int
    num_heads: int
    dropout: float
    activation: Callable[[Tensor], Tensor]
    normalize_first: bool
    layer_norm_epsilon: float
    rematerialize: bool
    kernel_initializer: keras.Initializer
    bias_initializer: keras.Initializer
    attention_options: Options
    feed_forward_options: Options
    residual_options: Options

    # A constructor sets tokenizers, limits and positions, and calls these methods in
    # their order, since each reads what the ones before have set. A decoder, not yet
    # built, precedes `_keep_block_arguments`.

    def _set_vocabularies(
        self,
        sizes: VocabularySizes,
        pad_token_id: int,
        start_token_id: int,
        end_token_id: int,
    ) -> None:
        """Sets sizes and special ids, which are those of the tokenizers, if any."""
        self.vocabulary_size = sizes.shared
        self.source_vocabulary_size = sizes.source
        self.target_vocabulary_size = sizes.target
        ids = find_special_ids(
            self.source_tokenizer,
            self.target_tokenizer,
            (pad_token_id, start_token_id, end_token_id),
            sizes.source,
            sizes.target,
        )
        self.pad_token_id, self.start_token_id, self.end_token_id = ids

    def _set_tying(
        self, tie_embeddings: str | None, output_bias: bool | str | None
    ) -> None:
        self.tie_embeddings = check_tying(tie_embeddings, self.vocabulary_size)
        check_one_of([True, False, "frozen"], optional=True, output_bias=output_bias)
        default = not self.shares_output
        self.output_bias = default if output_bias is None else output_bias

    @property
    def shares_output(self) -> bool:
        """Whether the target embedding is the matrix of the logits."""
        return self.tie_embeddings in ("all", "target")

    def _keep_block_arguments(self, decoder: DecoderStack) -> None:
        """Sets the arguments of the blocks as attributes of the model."""
        self.rematerialize = decoder.rematerialize
        for name, value in decoder.get_block_arguments().items():
            if name != "positions":  # those of the model
                setattr(self, name, value)

    def _make_embedding(
        self, name: str, vocabulary_size: int
    ) -> keras.layers.Embedding:
        is_output = name != "source" and self.shares_output
        layer_class = Embedding if is_output else keras.layers.Embedding
        embedding = layer_class(
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

    def _make_encoding(self, scheme: PositionScheme | None) -> PositionScheme | None:
        """Returns a built copy of a scheme that is added to the embeddings."""
        if scheme is None or not scheme.added_to_inputs:
            return None
        encoding = copy_scheme(scheme, self.dtype_policy)
        encoding.build((None, None, self.hidden_dim))
        return encoding

    def _make_embedding_norm(self) -> keras.layers.Layer | None:
        """Returns the normalisation of the embeddings, of the kind in the blocks."""
        if not self.normalize_embeddings:
            return None
        name = self.residual_options.get("normalization") or "layer"
        norm = make_normalization(name, self.layer_norm_epsilon, self.dtype_policy)
        assert norm is not None
        norm.build((None, None, self.hidden_dim))
        return norm

    def _make_dropout(self) -> keras.layers.Dropout:
        dropout = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)
        dropout.build((None, None, self.hidden_dim))
        return dropout

    def _build_output(self) -> None:
        self.output_dense = None
        self.logits_bias = None
        if not self.shares_output:
            self.output_dense = keras.layers.Dense(
                self.target_vocabulary_size,
                use_bias=False,
                dtype=self.dtype_policy,
                name="output",
            )
            self.output_dense.build((None, None, self.hidden_dim))
        if self.output_bias:
            self.logits_bias = self.add_weight(
                shape=(self.target_vocabulary_size,),
                initializer="zeros",
                trainable=self.output_bias != "frozen",
                name="output_bias",
            )

    def keep_length_ratio(self, data: object) -> None:
        """Raises `output_length_ratio` to that of a dataset.

        Args:
            data: the dataset of a `ParallelDataset`; other data have no effect.
        """
        ratio = float(getattr(data, "output_length_ratio", 1.0))
        if ratio > self.output_length_ratio:
            self.output_length_ratio = ratio
            for compiled in ("_generator", "_stepper"):
                vars(self).pop(compiled, None)

    def embed_target(
        self,
        token_ids: TokenIds,
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embeds target tokens and adds their positions.

        Args:
            token_ids: int tensor `(batch, target_length)`.
            positions: int tensor `(target_length,)` or `(batch, target_length)`;
                `None` = from 0.
            training: bool, whether dropout is applied.

        Returns:
            Tensor `(batch, target_length, hidden_dim)` in the compute dtype.
        """
        x = self._scale(self.target_embedding(token_ids))
        if self.target_encoding is not None:
            x = self.target_encoding(x, positions=positions)
        if self.target_norm is not None:
            x = self.target_norm(x)
        return self.embedding_dropout(x, training=training)

    def _scale(self, embedded: Tensor) -> Tensor:
        return embedded * self.hidden_dim**0.5 if self.scale_embeddings else embedded

    def compute_logits(self, decoded: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Computes the logits from the outputs of the decoder.

        Args:
            decoded: tensor `(batch, target_length, hidden_dim)`.
            kernel: tensor `(hidden_dim, vocabulary_size)`, the transposed embeddings,
                if they have been transposed.

        Returns:
            Tensor `(batch, target_length, vocabulary_size)` in the compute dtype.
        """
        if self.output_dense is not None:
            logits = self.output_dense(decoded)
        else:
            kernel = self.transposed_embeddings() if kernel is None else kernel
            logits = ops.matmul(decoded, kernel)
        bias = self.logits_bias
        return logits if bias is None else logits + ops.cast(bias, logits.dtype)

    def transposed_embeddings(self) -> Tensor:
        """Returns the kernel of the output layer if it shares the embeddings.

        Returns:
            Tensor `(hidden_dim, vocabulary_size)` in the compute dtype.
        """
        embeddings = ops.cast(self.target_embedding.embeddings, self.compute_dtype)
        return ops.transpose(embeddings)

    def _output_state(self) -> OutputState:
        if self.output_dense is not None:
            return {}
        return {"output_kernel": self.transposed_embeddings()}

    def state_axes(self, state: ModelState) -> dict[str, object]:
        """Returns a structure like `state` with the `StateAxes` of each tensor."""
        return axes_of_state(state)

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Prints the layers as `keras.Model.summary` does, and the tied output."""
        super().summary(line_length, positions, print_fn, **kwargs)
        # The table has a row for a separate matrix of the logits.
        layer = self.target_embedding if self.shares_output else self.output_dense
        assert layer is not None
        size = self.target_vocabulary_size
        bias = f" and a bias ({size:,} params)" if self.output_bias else ""
        (print_fn or print)(
            f" Logits: (None, None, {size}), weights of {layer.name}{bias}"
        )

    def own_tokenizers(self) -> "dict[str, Tokenizer]":
        """Returns the tokenizers by argument name, a shared tokenizer only once.

        Returns:
            A dictionary with the keys `"source_tokenizer"` and, if it is another
            object, `"target_tokenizer"`; for a `CausalLM`, `"tokenizer"`; empty
            without tokenizers.
        """
        source, target = self.source_tokenizer, self.target_tokenizer
        tokenizers = {"source_tokenizer": source, "target_tokenizer": target}
        if source is target:
            del tokenizers["target_tokenizer"]
        return {name: each for name, each in tokenizers.items() if each is not None}

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        tokenizers = self.own_tokenizers()
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in self.config_names},
            **self.decoder.get_block_config(),
            "rematerialize": self.rematerialize,
            "positions": serialize(self.positions),
            **{name: serialize(each) for name, each in tokenizers.items()},
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Self:
        """Creates a model from its configuration, if it fits in the memory."""
        check_fits_memory(config)
        config = deserialize_objects(config, MODEL_OBJECTS)
        for name in ("source_tokenizer", "target_tokenizer", "tokenizer"):
            if config.get(name) is not None:
                from keras_transformer import text  # noqa: F401 (registers tokenizers)

                config[name] = keras.saving.deserialize_keras_object(
                    config[name], custom_objects
                )
        return cls(**config)
