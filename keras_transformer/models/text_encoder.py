"""The encoder-only Transformer: a vector for each token of a text."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self, TypeVar

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.backend.processes import written_by_first_process
from keras_transformer.layers import (
    EncoderStack,
    PositionalEncoding,
    PositionScheme,
    padding_mask,
)
from keras_transformer.layers.activations import Activation
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.positions.scheme import copy_scheme, keep_untracked
from keras_transformer.layers.residual import make_normalization
from keras_transformer.layers.sub_layers import Initializer
from keras_transformer.layers.transformer_layer import (
    MODEL_OBJECTS,
    deserialize_objects,
)
from keras_transformer.models.encoder_model import (
    EncoderModel,
    Row,
    Texts,
    as_texts,
    check_pooling,
    pool_tokens,
)
from keras_transformer.models.file_checks import check_fits_memory
from keras_transformer.models.vocabularies import check_limit, find_sizes
from keras_transformer.types import Config, Options, Path, Shape, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.labels.predictions import warn_of_cut_texts

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


T = TypeVar("T")


@keras.saving.register_keras_serializable("keras_transformer")
class TextEncoder(EncoderModel):
    """Encoder-only Transformer: a vector for each token of a text.

    `embed` returns a vector for each text.

    It consists of token embeddings plus positions, and a stack of encoder blocks. With
    the arguments of the example, it is the encoder of BERT. It is a Keras model, whose
    outputs are the inputs of other layers, such as a classifier.

    The padding mask is computed from the token ids: padding equals `pad_token_id`.

    Args:
        num_layers: int, number of blocks.
        hidden_dim: int, width of the model (d_model).
        intermediate_dim: int, width of the feed-forward networks (d_ff).
        num_heads: int, number of attention heads. It must divide `hidden_dim`,
            unless `attention_options` contains `key_dim`.
        vocabulary_size: int, size of the vocabulary. Not needed with a tokenizer.
        num_segments: int, number of kinds of parts of a text that have an embedding;
            0 = no segments.
        scale_embeddings: bool, whether token embeddings are multiplied by √hidden_dim,
            as in the paper (section 3.4). BERT's are not.
        dropout: float in [0, 1), dropout rate of embeddings, attention scores
            and sub-layer outputs.
        activation: activation of the feed-forward networks.
        normalize_first: bool, whether to normalise the input of each sub-layer
            (pre-norm) instead of its output (post-norm).
        layer_norm_epsilon: float, epsilon of the normalisations.
        positions: a `PositionScheme`: an encoding is added to the embeddings, any
            other scheme is applied in every self-attention. `PositionalEncoding()` if
            `None`.
        normalize_embeddings: bool, whether a normalisation of the type in the blocks
            follows the embeddings and their positions.
        use_pooler: bool, whether the model has a pooler: a dense layer with tanh over
            the vector of the first token, as in BERT.
        attention_options: dictionary of further arguments of each
            `MultiHeadAttention`.
        feed_forward_options: dictionary of further arguments of each `FeedForward`.
        residual_options: dictionary of further arguments of each `Residual`.
        rematerialize: bool, whether training recomputes the activations inside the
            blocks for the gradient instead of storing them.
        kernel_initializer: initializer of all attention and feed-forward kernels.
        bias_initializer: initializer of all attention and feed-forward biases.
        max_length: int, maximum length of a text in tokens. `None` = the limit of
            `positions`, if they have one.
        pad_token_id: int, fills short rows of a batch. The tokenizer, if there is one,
            determines it.
        tokenizer: tokenizer of the texts (see `keras_transformer.text`), saved with
            the model.
        pair_separators: int, number of end tokens between the two texts of a pair: 1 in
            BERT, 2 in RoBERTa.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: int tensor `(batch, length)` of token ids, or a dictionary of
            `"token_ids"` and `"segment_ids"`, int tensors `(batch, length)`. Without
            `segment_ids`, all tokens are of the segment 0.
        training: bool, whether dropout is applied.

    Returns:
        Tensor `(batch, length, hidden_dim)` in the compute dtype.

    Raises:
        ValueError: if an argument is missing, out of range, or does not agree with
            another one.

    Example:

    >>> model = TextEncoder(
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     num_heads=2,
    ...     vocabulary_size=11,
    ...     num_segments=2,
    ...     positions=LearnedPositionalEncoding(20),
    ...     scale_embeddings=False,
    ...     normalize_embeddings=True,
    ...     activation="gelu",
    ... )
    >>> tuple(model(np.array([[5, 6, 7, 0]])).shape)
    (1, 4, 8)

    References:
        - [Devlin et al., 2019](https://arxiv.org/abs/1810.04805) (BERT)
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    @explains_arguments
    def __init__(
        self,
        *,
        num_layers: int,
        hidden_dim: int,
        intermediate_dim: int,
        num_heads: int,
        vocabulary_size: int | None = None,
        num_segments: int = 0,
        scale_embeddings: bool = True,
        dropout: float = 0.1,
        activation: Activation = "relu",
        normalize_first: bool = False,
        layer_norm_epsilon: float = 1e-5,
        positions: PositionScheme | None = None,
        normalize_embeddings: bool = False,
        use_pooler: bool = False,
        attention_options: Options | None = None,
        feed_forward_options: Options | None = None,
        residual_options: Options | None = None,
        rematerialize: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        max_length: int | None = None,
        pad_token_id: int = 0,
        tokenizer: "Tokenizer | None" = None,
        pair_separators: int = 1,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        check_ints(1, num_layers=num_layers, hidden_dim=hidden_dim)
        check_ints(1, pair_separators=pair_separators)
        check_ints(0, num_segments=num_segments, pad_token_id=pad_token_id)
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.num_segments = num_segments
        self.scale_embeddings = scale_embeddings
        self.normalize_embeddings = normalize_embeddings
        self.use_pooler = use_pooler
        self.pair_separators = pair_separators
        positions = positions or PositionalEncoding()
        keep_untracked(self, positions)
        self.max_length = check_limit(max_length, positions, "max_length")
        self.tokenizer = tokenizer
        sizes = find_sizes(tokenizer, tokenizer, vocabulary_size, None, None)
        self.vocabulary_size = sizes.target
        self.pad_token_id = (
            pad_token_id if tokenizer is None else tokenizer.pad_token_id
        )
        self.encoder = EncoderStack(
            num_layers,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
            activation=activation,
            normalize_first=normalize_first,
            layer_norm_epsilon=layer_norm_epsilon,
            positions=None if positions.added_to_inputs else positions,
            attention_options=attention_options,
            feed_forward_options=feed_forward_options,
            residual_options=residual_options,
            rematerialize=rematerialize,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            dtype=self.dtype_policy,
            name="encoder",
        )
        for name, value in self.encoder.get_block_arguments().items():
            if name != "positions":
                setattr(self, name, value)
        self.rematerialize = rematerialize
        self._build_layers(positions)

    def _build_layers(self, positions: PositionScheme) -> None:
        shape = (None, None, self.hidden_dim)
        self.token_embedding = self._make_embedding("token", self.vocabulary_size)
        self.segment_embedding = None
        if self.num_segments:
            self.segment_embedding = self._make_embedding("segment", self.num_segments)
        self.encoding = None
        if positions.added_to_inputs:
            self.encoding = copy_scheme(positions, self.dtype_policy)
            self.encoding.build(shape)
        self.norm: keras.layers.Layer | None = None
        if self.normalize_embeddings:
            kind = self.residual_options.get("normalization") or "layer"
            norm = make_normalization(kind, self.layer_norm_epsilon, self.dtype_policy)
            assert norm is not None
            norm.build(shape)
            self.norm = norm
        self.embedding_dropout = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy
        )
        self.encoder.build(shape)
        self.pooler = None
        if self.use_pooler:
            self.pooler = keras.layers.Dense(
                self.hidden_dim,
                activation="tanh",
                dtype=self.dtype_policy,
                name="pooler",
            )
            self.pooler.build((None, self.hidden_dim))
        self.built = True

    def _make_embedding(self, name: str, size: int) -> keras.layers.Embedding:
        embedding = keras.layers.Embedding(
            size,
            self.hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=self.hidden_dim**-0.5
            ),
            dtype=self.dtype_policy,
            name=f"{name}_embedding",
        )
        embedding.build((None, None))
        return embedding

    def call(
        self, inputs: TokenIds | Mapping[str, TokenIds], training: bool | None = None
    ) -> Tensor:
        token_ids, segment_ids = _parse(inputs)
        x = self.token_embedding(token_ids)
        if self.scale_embeddings:
            x = x * self.hidden_dim**0.5
        if self.segment_embedding is not None:
            if segment_ids is None:
                segment_ids = ops.zeros_like(token_ids)
            x = x + self.segment_embedding(segment_ids)
        if self.encoding is not None:
            x = self.encoding(x)
        if self.norm is not None:
            x = self.norm(x)
        x = self.embedding_dropout(x, training=training)
        mask = padding_mask(token_ids, self.pad_token_id)
        return self.encoder(x, padding_mask=mask, training=training)

    def compute_output_shape(
        self, inputs_shape: Shape | Mapping[str, Shape]
    ) -> tuple[int | None, ...]:
        return (*_parse(inputs_shape)[0], self.hidden_dim)

    def embed(
        self,
        texts: Texts,
        pooling: str = "mean",
        normalize: bool = False,
        batch_size: int = 64,
    ) -> np.ndarray:
        """Computes a vector for each text.

        Args:
            texts: str, or list or array of str; list of pairs of str; or list of rows
                of int token ids, with start and end. A text with more tokens than
                `max_length` is cut, and a warning says how many are.
            pooling: `"mean"` or `"max"` over the tokens of a text, `"cls"`, the vector
                of the first token, or `"pooler"`, the output of the pooler.
            normalize: bool, whether the vectors are divided by their length, so that
                the product of two vectors is their cosine similarity.
            batch_size: int, number of texts that are computed together.

        Returns:
            float32 array `(texts, hidden_dim)`.

        Raises:
            ValueError: if `texts` or `pooling` have another form, or the model lacks a
                tokenizer or a pooler.

        Example:

        ```python
        encoder = load_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        a, b = encoder.embed(["A man sleeps.", "Someone is asleep."], normalize=True)
        print(a @ b)
        ```

        References:
            - [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084)
        """
        check_pooling(pooling, self.use_pooler)
        rows = self.rows_of_texts(texts, "texts")
        function = self._embeddings.get((pooling, normalize))
        if function is None:

            def vectors(inputs: Mapping[str, TokenIds]) -> Tensor:
                found = self.pool_texts(inputs, self(inputs, training=False), pooling)
                return ops.normalize(found, axis=-1) if normalize else found

            function = compile_function(vectors, self)
            self._embeddings[pooling, normalize] = function
        found = self._apply_to_rows(function, rows, self.paddings, batch_size)
        return np.reshape(np.array(found, "float32"), (len(rows), self.hidden_dim))

    @functools.cached_property
    def _embeddings(self) -> dict[tuple[str, bool], Callable[..., Tensor]]:
        return {}

    @property
    def paddings(self) -> dict[str, int]:
        """The padding of each input."""
        segments = {"segment_ids": 0} if self.num_segments else {}
        return {"token_ids": self.pad_token_id, **segments}

    @property
    def second_segment(self) -> int:
        """The segment of the second text of a pair: 1, if there are several."""
        return min(1, max(self.num_segments - 1, 0))

    def rows_of_texts(self, texts: Texts, argument: str) -> list[Row]:
        """Returns the inputs for each text; warns of texts that are cut.

        Args:
            texts: the texts of `embed`.
            argument: str, the name of the argument in errors.

        Returns:
            List of dictionaries of `"token_ids"` and `"segment_ids"`, lists of int.

        Raises:
            ValueError: if `texts` has another form, or there is no tokenizer.
        """
        entries = as_texts(texts, argument)
        if entries.token_ids is not None:
            self._check_token_ids(entries.token_ids, argument)
            return [
                {"token_ids": row, "segment_ids": [0] * len(row)}
                for row in entries.token_ids
            ]
        tokenizer = self._require_tokenizer(argument)
        if not entries.first:
            return []
        from keras_transformer.dataset.encoder_inputs import encode_texts

        encoded = encode_texts(
            tokenizer,
            entries.first,
            entries.second,
            self.max_length,
            self.pair_separators,
            self.second_segment,
        )
        if self.max_length is not None:
            warn_of_cut_texts(encoded.is_cut.numpy(), self.max_length)
        parts = (encoded.token_ids.to_list(), encoded.segment_ids.to_list())
        return [
            {"token_ids": token_ids, "segment_ids": segment_ids}
            for token_ids, segment_ids in zip(*parts, strict=True)
        ]

    def _check_token_ids(self, rows: list[list[int]], argument: str) -> None:
        """Raises `ValueError` for unknown ids and for rows that are too long."""
        longest = self.max_length or math.inf
        for number, row in enumerate(rows):
            if min(row) < 0 or max(row) >= self.vocabulary_size or len(row) > longest:
                raise ValueError(
                    f"`{argument}` must have token ids from 0 to "
                    f"{self.vocabulary_size - 1}, at most {longest} in a row; received "
                    f"{len(row)} ids from {min(row)} to {max(row)} in row {number}."
                )

    def pool_texts(
        self,
        inputs: TokenIds | Mapping[str, TokenIds],
        encoded: Tensor,
        pooling: str,
    ) -> Tensor:
        """Returns a vector for each text.

        Args:
            inputs: the inputs of the model.
            encoded: tensor `(batch, length, hidden_dim)`, its outputs.
            pooling: see `embed`.

        Returns:
            float32 tensor `(batch, hidden_dim)`.
        """
        if pooling == "pooler":
            return ops.cast(self.pool(encoded), "float32")
        token_ids, _ = _parse(inputs)
        mask = padding_mask(token_ids, self.pad_token_id)
        return pool_tokens(encoded, mask, pooling)

    def pool(self, encoded: Tensor) -> Tensor:
        """Applies the pooler to the vector of the first token.

        Args:
            encoded: tensor `(batch, length, hidden_dim)`, the outputs of the model.

        Returns:
            Tensor `(batch, hidden_dim)` in the compute dtype.

        Raises:
            ValueError: if the model has no pooler.
        """
        if self.pooler is None:
            raise ValueError(
                "`pool` requires a model with a pooler; received a call on a model "
                "with `use_pooler=False`."
            )
        return self.pooler(encoded[:, 0])

    @written_by_first_process
    def save_pretrained(
        self, folder: Path, model_type: str | None = None, **options: int
    ) -> None:
        """Writes a folder that Hugging Face's transformers and `load_pretrained` load.

        Args:
            folder: folder to write; it must be new or empty.
            model_type: the family, such as `"bert"`. `None` = the first family with
                the design of the model.
            **options: further arguments of
                `keras_transformer.interoperability.save_pretrained`.

        Raises:
            ValueError: if no family has the design of the model.
        """
        from keras_transformer.interoperability import save_pretrained

        save_pretrained(self, folder, model_type, **options)

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        names = (
            *("num_layers", "hidden_dim", "vocabulary_size", "num_segments"),
            *("scale_embeddings", "normalize_embeddings", "use_pooler"),
            *("rematerialize", "max_length", "pad_token_id", "pair_separators"),
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            **self.encoder.get_block_config(),
            "positions": serialize(self.positions),
            "tokenizer": serialize(self.tokenizer),
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Self:
        """Creates a model from its configuration, if it fits in the memory."""
        check_fits_memory(config)
        config = deserialize_objects(config, MODEL_OBJECTS)
        if config.get("tokenizer") is not None:
            from keras_transformer import text  # noqa: F401 (registers tokenizers)

            config["tokenizer"] = keras.saving.deserialize_keras_object(
                config["tokenizer"], custom_objects
            )
        return cls(**config)


def _parse(inputs: T | Mapping[str, T]) -> tuple[T, T | None]:
    """Returns token ids and segment ids; `None` = no segment ids."""
    if isinstance(inputs, Mapping):
        return inputs["token_ids"], inputs.get("segment_ids")
    return inputs, None
