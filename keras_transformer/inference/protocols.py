"""The protocol of a model that generation, scoring and alignment use."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import keras

from keras_transformer.decoding import DecodingModel, ModelState, OutputLength, Search
from keras_transformer.inference.source_arrays import ArraySpec, Sources
from keras_transformer.types import Config, Mask, Size, SizeT, Tensor, TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class SequenceInputs(TypedDict):
    """The inputs of a call of a model."""

    # int32 (batch, source_length), padded; or arrays (batch, ...)
    encoder_token_ids: TokenIds
    # int32 (batch, target_length), after the start token, padded
    decoder_token_ids: TokenIds


class SequenceModel(DecodingModel, Protocol):
    """What generation, scoring and alignment use of a model; see `GenerativeModel`."""

    source_tokenizer: "Tokenizer | None"
    target_tokenizer: "Tokenizer | None"
    source_vocabulary_size: int
    target_vocabulary_size: int
    max_source_length: int | None
    max_target_length: int | None
    default_search: Search
    has_cross_attention: bool
    returns_attention_scores: bool
    empty_source: tuple[int, ...]
    length_arguments: tuple[str, str]

    @property
    def source_spec(self) -> ArraySpec | None: ...

    @property
    def weights(self) -> Sequence[keras.Variable]: ...

    @property
    def variables(self) -> Sequence[keras.Variable]: ...

    def __call__(
        self, inputs: SequenceInputs, training: bool | None = None
    ) -> Tensor: ...

    def get_config(self) -> Config: ...

    def prepare_sources(self, sources: Sources) -> Sources: ...

    def source_mask(self, sources: Sources) -> Mask: ...

    def max_steps(
        self, source_lengths: SizeT, max_length: OutputLength | None = None
    ) -> SizeT: ...

    def longest_output(
        self, source_length: SizeT, max_length: OutputLength | None = None
    ) -> SizeT: ...

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> ModelState: ...

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor: ...

    def generate(self, inputs: Any, *args: Any, **options: Any) -> Any: ...

    def stream(self, *args: Any, **options: Any) -> Iterator[str]: ...

    def score(self, sources: Any, targets: Any, *args: Any, **options: Any) -> Any: ...

    def align(self, sources: Any, targets: Any, *args: Any, **options: Any) -> Any: ...
