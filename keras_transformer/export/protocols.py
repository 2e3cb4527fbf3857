"""The protocols of the models that each export format supports."""

import os
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    runtime_checkable,
)

import keras

from keras_transformer.inference.protocols import SequenceModel
from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.layers import DecoderStack, EncoderStack, PositionScheme
from keras_transformer.types import Config, Tensor, TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

# Names of the formats in error messages.
FORMAT_NAMES = {
    "saved_model": "a SavedModel",
    "ctranslate2": "CTranslate2",
    "onnx": "ONNX",
    "marian": "Marian",
}
# Token of a row of an embedding that has no token in the vocabulary.
UNUSED_TOKEN = "<unused {}>"


class ExportableModel(SequenceModel, Protocol):
    """A model that can be exported.

    `keras_transformer.models.GenerativeModel` is the base class of the models of the
    library, which all follow this protocol. `export_saved_model` requires nothing else,
    except for tokenizers. It compares the SavedModel with `generate` and `score`.
    """

    def score(self, sources: Any, targets: Any, batch_size: int = 64) -> ScoreResult:
        """Scores targets; see `Seq2Seq.score`."""
        ...

    def count_params(self) -> int:
        """Returns the number of parameters."""
        ...

    def save(self, filepath: str | os.PathLike) -> None:
        """Saves the model in a `.keras` file."""
        ...

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Creates a model from its configuration."""
        ...


class DecoderTransformer(ExportableModel, Protocol):
    """A Transformer with a stack of decoder blocks, which predicts the next token.

    It holds what `EncoderDecoderTransformer` and `DecoderOnlyTransformer` share. The
    docstrings of `Seq2Seq` and `CausalLM` describe the attributes that are arguments of
    their constructors.

    Attributes:
        target_embedding: embedding of the target tokens.
        decoder: the stack of decoder blocks.
        tied_output_bias: bias of the logits without `output_dense`; `None` = no bias.
    """

    num_layers: int
    hidden_dim: int
    intermediate_dim: int
    num_heads: int
    dropout: float
    activation: Callable[[Tensor], Tensor]
    normalize_first: bool
    layer_norm_epsilon: float
    positions: Any
    normalize_embeddings: bool
    tie_embeddings: str
    scale_embeddings: bool
    output_bias: bool
    target_embedding: keras.layers.Embedding
    decoder: DecoderStack
    tied_output_bias: keras.Variable | None

    @property
    def output_dense(self) -> keras.layers.Dense | None:
        """Layer from the decoder's outputs to the logits; `None` if it is tied."""
        ...

    @property
    def dtype_policy(self) -> Any:
        """The dtype policy."""
        ...

    def embed_target(
        self,
        token_ids: TokenIds,
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Returns the inputs of the decoder `(batch, target_length, hidden_dim)`."""
        ...

    def compute_logits(self, decoded: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Returns the logits of outputs of the decoder."""
        ...


@runtime_checkable
class EncoderDecoderTransformer(DecoderTransformer, Protocol):
    """An encoder-decoder Transformer whose sources and targets are token ids.

    ONNX, CTranslate2 and Marian, which store weights and a description of the
    architecture, support it. `Seq2Seq` follows it. An `Ensemble` does not follow it.

    Attributes:
        source_embedding: embedding of the source tokens. It is `target_embedding` if
            `tie_embeddings` is `"all"`.
        source_encoding: encoding that is added to the embeddings of the source;
            `None` if `positions` act in attention.
        target_encoding: encoding that is added to the embeddings of the target.
        source_norm: normalisation of the embeddings of the source, or `None`.
        target_norm: normalisation of the embeddings of the target, or `None`.
        encoder: the stack of encoder blocks.
    """

    num_decoder_layers: int
    source_embedding: keras.layers.Embedding
    source_encoding: PositionScheme | None
    target_encoding: PositionScheme | None
    source_norm: keras.layers.Layer | None
    target_norm: keras.layers.Layer | None
    encoder: EncoderStack

    def encode(
        self, encoder_token_ids: TokenIds, training: bool | None = None
    ) -> Tensor:
        """Returns the outputs of the encoder `(batch, source_length, hidden_dim)`."""
        ...


@runtime_checkable
class DecoderOnlyTransformer(DecoderTransformer, Protocol):
    """A language model: its sources are prompts, and its targets continue them.

    ONNX and CTranslate2 support it. `CausalLM` follows it.

    Attributes:
        target_encoding: encoding that is added to the embeddings; `None` if
            `positions` act in attention.
        target_norm: normalisation of the embeddings, or `None`.
        add_start_token: bool, whether every prompt begins with the start token.
    """

    target_encoding: PositionScheme | None
    target_norm: keras.layers.Layer | None
    add_start_token: bool


Transformer: TypeAlias = EncoderDecoderTransformer | DecoderOnlyTransformer


def check_encoder_decoder(model: object, format: str) -> EncoderDecoderTransformer:
    """Returns the model as an `EncoderDecoderTransformer`, or raises `ValueError`."""
    if isinstance(model, EncoderDecoderTransformer):
        _check_token_ids(model, format)
        return model
    raise _wrong_class(
        model, "an encoder-decoder Transformer, such as a `Seq2Seq`,", format
    )


def check_transformer(model: object, format: str) -> Transformer:
    """Returns the model as a `Transformer`, or raises `ValueError`."""
    if isinstance(model, EncoderDecoderTransformer | DecoderOnlyTransformer):
        _check_token_ids(model, format)
        return model
    raise _wrong_class(
        model, "a single Transformer, such as a `Seq2Seq` or a `CausalLM`,", format
    )


def require_supported(
    format: str, supported: bool, name: str, received: object, expected: str
) -> None:
    """Raises `ValueError` if a format does not support an argument of the model."""
    if not supported:
        raise ValueError(
            f"`{name}` must be {expected} for {FORMAT_NAMES[format]}; received "
            f"`{name}={received!r}`. Use `format='saved_model'`, which supports any "
            "model with tokenizers, or train a model that the format supports."
        )


def _check_token_ids(model: SequenceModel, format: str) -> None:
    """Raises `ValueError` if the sources of a model are arrays."""
    if model.source_spec is not None:
        raise ValueError(
            "`source_embedding` must be `None` for "
            f"{FORMAT_NAMES[format]}, whose sources are token ids; received a model "
            "whose sources are arrays. Use `format='saved_model'`."
        )


def _wrong_class(model: object, expected: str, format: str) -> ValueError:
    return ValueError(
        f"`model` must be {expected} for {FORMAT_NAMES[format]}; received a model of "
        f"class `{type(model).__name__}`. Use `format='saved_model'`, which supports "
        "any model with tokenizers."
    )


def as_keras_model(model: ExportableModel) -> keras.Model:
    """Returns the model as a Keras model, whose layers can be listed."""
    if isinstance(model, keras.Model):
        return model
    raise ValueError(
        "`model` must be a `keras.Model` to be exported; received an object of class "
        f"`{type(model).__name__}`. Derive the class of the model from "
        "`keras_transformer.models.GenerativeModel`."
    )


class Tokenizers(NamedTuple):
    """The tokenizers of the sources and the targets of a model."""

    source: "Tokenizer"
    target: "Tokenizer"


def tokenizers_of(model: SequenceModel) -> Tokenizers:
    """Returns the tokenizers of a model, or raises `ValueError` if it has none."""
    if model.source_tokenizer is None or model.target_tokenizer is None:
        raise ValueError(
            "`model` must have tokenizers to be exported; received a model without "
            "`source_tokenizer`. Pass tokenizers to the constructor of the model."
        )
    return Tokenizers(model.source_tokenizer, model.target_tokenizer)


def array_input(model: SequenceModel) -> tuple[tuple[int | None, ...], str]:
    """Returns the shape and the dtype of a source of a model that takes arrays."""
    spec = model.source_spec
    if spec is None or spec.shape is None or spec.dtype is None:
        raise ValueError(
            "`source_embedding` must have an input of known shape and dtype for a "
            f"SavedModel; received a layer of the inputs `{spec}`. Pass "
            "`keras.Sequential([keras.Input(shape, dtype=dtype), layer])`."
        )
    return spec.shape, spec.dtype


def tokenizers_to_write(model: SequenceModel) -> "dict[str, Tokenizer]":
    """Returns the tokenizers of a model by the names of their files."""
    tokenizers = tokenizers_of(model)
    if isinstance(model, DecoderOnlyTransformer):
        return {"tokenizer": tokenizers.target}
    return tokenizers._asdict()


def embedding_vocabulary(tokenizer: "Tokenizer", size: int) -> list[str]:
    """Returns a token for each row of an embedding; the last ones can be unused."""
    tokens = tokenizer.get_vocabulary()
    return [*tokens, *map(UNUSED_TOKEN.format, range(len(tokens), size))]
