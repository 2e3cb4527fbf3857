"""The protocol of a model that inference and the writers of exports use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, runtime_checkable

from keras_transformer.decoding import (
    DecodingModel,
    ModelState,
    OutputLength,
    Search,
    SearchInputs,
    SearchResult,
)
from keras_transformer.decoding.search import StateT
from keras_transformer.inference.source_arrays import ArraySpec
from keras_transformer.types import Config, Mask, Size, Tensor, TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class SequenceInputs(TypedDict):
    """The inputs of a call of a model.

    Attributes:
        encoder_token_ids: int32 tensor `(batch, source_length)`, padded; or arrays
            `(batch, ...)`, if the model has a `source_spec`.
        decoder_token_ids: int32 tensor `(batch, target_length)`, the targets after the
            start token, padded.
    """

    encoder_token_ids: TokenIds
    decoder_token_ids: TokenIds


class SequenceModel(DecodingModel, Protocol):
    """A model from sequences to sequences, of token ids or texts.

    `keras_transformer.models.GenerativeModel` is the base class of the models of the
    library, which all follow this protocol. `generate`, `score`, `align`, `stream`, the
    writers of exports and the translation of files depend on nothing else.

    Attributes:
        source_tokenizer: tokenizer of the sources, or `None`.
        target_tokenizer: tokenizer of the targets, or `None`.
        source_vocabulary_size: int, number of token ids of the sources.
        target_vocabulary_size: int, number of token ids of the targets.
        max_source_length: int, maximum length of a source in tokens, the end token
            included; `None` = no limit.
        max_target_length: int, maximum length of a target, likewise.
        default_search: the search if none is given.
        has_cross_attention: bool, whether `cross_attention` is defined.
        empty_source: tuple of ints, the token ids that take the place of a source
            without tokens.
        length_arguments: names of the arguments of the model that limit the lengths of
            sources and targets.
    """

    source_tokenizer: "Tokenizer | None"
    target_tokenizer: "Tokenizer | None"
    source_vocabulary_size: int
    target_vocabulary_size: int
    max_source_length: int | None
    max_target_length: int | None
    default_search: Search
    has_cross_attention: bool
    empty_source: tuple[int, ...]
    length_arguments: tuple[str, str]

    @property
    def source_spec(self) -> ArraySpec | None:
        """The arrays that are sources in place of token ids; `None` = token ids."""
        ...

    @property
    def weights(self) -> Sequence[Any]:
        """The weights of the model."""
        ...

    @property
    def variables(self) -> Sequence[Any]:
        """The weights and the other variables of the model."""
        ...

    def __call__(self, inputs: SequenceInputs, training: bool | None = None) -> Tensor:
        """Computes the logits of the next tokens.

        Args:
            inputs: dictionary of the sources and targets, as `fit` takes them.
            training: bool, whether dropout is applied.

        Returns:
            Tensor `(batch, target_length, target_vocabulary_size)`.
        """
        ...

    def get_config(self) -> Config:
        """Returns the configuration of the model."""
        ...

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> ModelState:
        """Encodes the sources; see `GenerativeModel.start_decoding`."""
        ...

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Returns the cross-attention; see `GenerativeModel.cross_attention`."""
        ...

    def prepare_sources(self, sources: Any) -> Any:
        """Computes what the first steps share; see `GenerativeModel`."""
        ...

    def source_mask(self, sources: Any) -> Mask:
        """Returns the real positions of sources; see `GenerativeModel.source_mask`."""
        ...

    def max_steps(
        self, source_lengths: Any, max_length: OutputLength | None = None
    ) -> Any:
        """Returns the maximum output lengths; see `GenerativeModel.max_steps`."""
        ...

    def longest_output(
        self, source_length: Any, max_length: OutputLength | None = None
    ) -> Any:
        """Returns the limit of a batch; see `GenerativeModel.longest_output`."""
        ...

    def search_inputs(
        self,
        encoder_token_ids: TokenIds,
        max_length: OutputLength | None = None,
        min_length: OutputLength = 0,
        prefixes: TokenIds | None = None,
        seed: Size = 0,
        phrases: TokenIds | None = None,
    ) -> SearchInputs:
        """Returns the constraints of a search; see `GenerativeModel.search_inputs`."""
        ...

    def generate(
        self,
        inputs: Any,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        batch_size: int = 64,
        return_scores: bool = False,
        *,
        return_truncated: bool = False,
        return_alignments: bool = False,
        min_length: OutputLength = 0,
        prefix: Any = None,
        seed: int | None = None,
        distinct_texts: bool = False,
        constraints: Any = None,
    ) -> Any:
        """Decodes texts or token ids; see `GenerativeModel.generate`."""
        ...

    def align(
        self,
        sources: Any,
        targets: Any,
        layer: int | None = None,
        batch_size: int = 64,
    ) -> Any:
        """Aligns targets with their sources; see `GenerativeModel.align`."""
        ...

    def search(
        self,
        encoder_token_ids: TokenIds,
        search: Search,
        max_length: OutputLength | None = None,
        min_length: OutputLength = 0,
        prefixes: TokenIds | None = None,
        seed: Size = 0,
        phrases: TokenIds | None = None,
    ) -> SearchResult:
        """Decodes a batch of token ids; see `GenerativeModel.search`."""
        ...

    def begin_search(
        self,
        encoder_token_ids: TokenIds,
        search: Search[StateT],
        max_length: OutputLength | None = None,
        min_length: OutputLength = 0,
        prefixes: TokenIds | None = None,
        seed: Size = 0,
    ) -> tuple[SearchInputs, StateT]:
        """Computes the first part of a search; see `GenerativeModel.begin_search`."""
        ...


class LanguageModel(SequenceModel, Protocol):
    """A decoder-only model, whose sources are prompts; `CausalLM` follows it.

    Attributes:
        add_start_token: bool, whether texts begin with the start token.
    """

    add_start_token: bool

    def score(self, sources: Any, targets: Any, batch_size: int = 64) -> Any:
        """Scores continuations; see `GenerativeModel.score`."""
        ...


@runtime_checkable
class HasAttentionScores(Protocol):
    """A model whose call returns the attention scores of every layer and head."""

    num_decoder_layers: int

    def call(
        self,
        inputs: SequenceInputs,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns logits, and a dictionary of scores with the key `"cross"`."""
        ...
