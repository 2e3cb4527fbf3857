"""The base class of models that a search decodes: their steps, limits and search."""

import abc
from typing import Any

from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.decoding import (
    ModelState,
    OutputLength,
    Search,
    SearchInputs,
    SearchResult,
    run_search,
)
from keras_transformer.decoding.lengths import (
    DEFAULT_MAX_LENGTH,
    default_lengths,
    output_lengths,
    smaller,
)
from keras_transformer.decoding.loop import begin_search
from keras_transformer.decoding.random_numbers import (
    combine,
    key_of_array,
    key_of_tokens,
)
from keras_transformer.decoding.search import StateT
from keras_transformer.inference.source_arrays import (
    ArraySpec,
    EmbeddedSources,
    without_embedding,
)
from keras_transformer.layers import padding_mask
from keras_transformer.layers.masking import align_rows
from keras_transformer.models.saving import PresetModel
from keras_transformer.types import Mask, Size, Tensor, TokenIds


class SearchableModel(PresetModel):
    """Base class of models from sequences of tokens that a search decodes.

    A subclass sets the attributes and defines the steps of decoding
    (`start_decoding`, `decode_step`, …).

    Attributes:
        max_target_length: int, maximum length of a target in tokens, or `None`.
        pad_token_id: int.
        start_token_id: int.
        end_token_id: int.
        forces_end_token: bool; see `DecodingModel`.
        output_length_ratio: float, target tokens for each source token that outputs
            have room for if `max_length` is `None`.
    """

    max_target_length: int | None
    pad_token_id: int
    start_token_id: int
    end_token_id: int
    forces_end_token: bool = True
    output_length_ratio: float = 1.0

    @property
    def source_spec(self) -> ArraySpec | None:
        """The arrays that are sources in place of token ids; `None` = token ids."""
        return None

    @abc.abstractmethod
    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> ModelState:
        """Encodes the sources and creates the state of the first decoding step.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`, padded; or the
                result of `prepare_sources`.
            num_beams: int, number of hypotheses of each source.
            max_length: int or int32 scalar tensor, number of steps that the state has
                room for.
            return_attention: bool, whether each step adds the attention of the newest
                tokens to the state.

        Returns:
            A nest of tensors; with `return_attention=True` a dictionary with the key
            `"attention"`, float32 `(batch, num_beams, source_length)`: the
            cross-attention of the last block, a mean over its heads.
        """

    @abc.abstractmethod
    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: ModelState
    ) -> tuple[Tensor, ModelState]:
        """Computes the logits of the next tokens.

        Args:
            token_ids: int tensor `(batch, num_beams)`, the newest tokens.
            index: int32 scalar tensor, their position; that of the start token is 0.
            state: the state of the model.

        Returns:
            Logits `(batch, num_beams, target_vocabulary_size)` and the new state.
        """

    @abc.abstractmethod
    def prepare_state(self, state: ModelState) -> ModelState:
        """Adds tensors for all steps; see `DecodingModel.prepare_state`."""

    @abc.abstractmethod
    def reorder_state(self, state: ModelState, parents: Tensor) -> ModelState:
        """Replaces the history of each beam; see `DecodingModel.reorder_state`."""

    @abc.abstractmethod
    def extend_state(self, state: ModelState, max_length: Size) -> ModelState:
        """Makes room for more steps; see `DecodingModel.extend_state`."""

    @abc.abstractmethod
    def take_state(self, state: ModelState, rows: Tensor) -> ModelState:
        """Selects rows of the batch; see `DecodingModel.take_state`."""

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
        """Decodes a batch of token ids; can be traced by every backend.

        `generate` compiles this method and `export` traces it.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`, padded.
            search: the search.
            max_length: int or `RelativeLength`, maximum output length in tokens, the
                end token included. `None` = 50 more than the length of the source, as
                in section 6.1 of the paper, or `output_length_ratio` times its length
                if this is more. `max_target_length` is a limit as well.
            min_length: int or `RelativeLength`, minimum output length.
            prefixes: int tensor `(batch, prefix_length)`, the beginnings of the
                outputs, padded; `None` = no prefixes.
            seed: int32 tensor, a scalar or `(batch,)`, seed of the random numbers.
            phrases: int tensor `(batch, phrases, phrase_length)`, the phrases that must
                occur in the outputs, padded; `None` = no phrases.

        Returns:
            A `SearchResult` of tensors.
        """
        sources = self.prepare_sources(encoder_token_ids)
        inputs = self.search_inputs(
            sources, max_length, min_length, prefixes, seed, phrases
        )
        state, steps, capacity = self._start(sources, inputs, search, max_length)
        return run_search(search, self, inputs, state, steps, capacity)

    def begin_search(
        self,
        encoder_token_ids: TokenIds,
        search: Search[StateT],
        max_length: OutputLength | None = None,
        min_length: OutputLength = 0,
        prefixes: TokenIds | None = None,
        seed: Size = 0,
    ) -> tuple[SearchInputs, StateT]:
        """Computes the first part of `search`, which finishes most small batches.

        `generate` compiles it alone, in about half of the time of `search`.
        `end_search` of `keras_transformer.decoding.loop` is the other part.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`, padded.
            search: the search.
            max_length: int or `RelativeLength`, as in `search`.
            min_length: int or `RelativeLength`, as in `search`.
            prefixes: int tensor `(batch, prefix_length)`, as in `search`.
            seed: int32 tensor, as in `search`.

        Returns:
            The constraints of the search, and its state.
        """
        sources = self.prepare_sources(encoder_token_ids)
        inputs = self.search_inputs(sources, max_length, min_length, prefixes, seed)
        state, steps, capacity = self._start(sources, inputs, search, max_length)
        return inputs, begin_search(search, self, inputs, state, steps, capacity)

    def _start(
        self,
        sources: Any,
        inputs: SearchInputs,
        search: Search,
        max_length: OutputLength | None,
    ) -> tuple[ModelState, Size, Size]:
        """Returns the first state, the number of steps, and those it has room for."""
        source_length = ops.shape(inputs.source_mask)[1]
        steps = self.longest_output(source_length, max_length)
        capacity = smaller(source_length + 8, steps)  # few outputs are longer
        state = self.start_decoding(
            sources, search.num_beams, capacity, search.needs_attention
        )
        return state, steps, capacity

    def prepare_sources(self, sources: Any) -> Any:
        """Computes what the first steps of a search share, once.

        Args:
            sources: int array or tensor `(batch, source_length)`, padded; or arrays
                `(batch, ...)`, if the model has a `source_spec`; or the result of this
                method, which is returned.

        Returns:
            The sources for `search_inputs`, `source_mask` and `start_decoding`: an
            int32 tensor, padded at the end, or the arrays with their embedding.
        """
        if isinstance(sources, EmbeddedSources):
            return sources
        if self.source_spec is not None:
            return ops.convert_to_tensor(sources)
        token_ids = ops.convert_to_tensor(sources, "int32")
        return align_rows(token_ids, self.pad_token_id)[0]

    def search_inputs(
        self,
        encoder_token_ids: TokenIds,
        max_length: OutputLength | None = None,
        min_length: OutputLength = 0,
        prefixes: TokenIds | None = None,
        seed: Size = 0,
        phrases: TokenIds | None = None,
    ) -> SearchInputs:
        """Returns the constraints of a search.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`, padded; or the
                result of `prepare_sources`.
            max_length: int or `RelativeLength`, maximum output length, as in `search`.
            min_length: int or `RelativeLength`, minimum output length.
            prefixes: int tensor `(batch, prefix_length)`, the beginnings of the
                outputs, padded; `None` = no prefixes.
            seed: int32 tensor, a scalar or `(batch,)`, seed of the random numbers.
            phrases: int tensor `(batch, phrases, phrase_length)`, the phrases that must
                occur, padded; `None` = no phrases.

        Returns:
            `SearchInputs`.
        """
        sources = self.prepare_sources(encoder_token_ids)
        real = self.source_mask(sources)
        lengths = int32_sum(real, axis=1)
        batch, source_length = ops.shape(real)
        if self.source_spec is None:
            keys = key_of_tokens(sources, real)
        else:
            keys = key_of_array(without_embedding(sources))
        if prefixes is None:
            prefixes = ops.zeros((batch, 0), "int32")
        if phrases is None:
            phrases = ops.zeros((batch, 0, 0), "int32")
        steps = self.longest_output(source_length, max_length)
        limits = ops.minimum(self.max_steps(lengths, max_length), steps)
        return SearchInputs(
            limits=ops.where(lengths > 0, limits, 1),
            min_lengths=output_lengths(min_length, lengths),
            prefixes=prefixes,
            source_mask=real,
            keys=combine(keys, seed),
            phrases=phrases,
        )

    def source_mask(self, sources: Any) -> Mask:
        """Returns which positions of the sources are real.

        Args:
            sources: int tensor `(batch, source_length)`, padded; or arrays
                `(batch, ...)`, if the model has a `source_spec`; or the result of
                `prepare_sources`.

        Returns:
            Boolean tensor `(batch, source_length)`.
        """
        sources = self.prepare_sources(sources)
        if isinstance(sources, EmbeddedSources):
            return sources.mask
        return padding_mask(sources, self.pad_token_id)

    def max_steps(
        self, source_lengths: Any, max_length: OutputLength | None = None
    ) -> Any:
        """Returns the maximum output lengths, as `max_target_length` limits them.

        Args:
            source_lengths: int or int32 tensor, lengths of sources in tokens.
            max_length: int or `RelativeLength`; see `search`.

        Returns:
            int or int32 tensor, of the type and shape of `source_lengths`.
        """
        if max_length is None:
            steps = default_lengths(
                source_lengths, self.output_length_ratio, DEFAULT_MAX_LENGTH
            )
        else:
            steps = output_lengths(max_length, source_lengths)
        limit = self.max_target_length
        return steps if limit is None else smaller(steps, limit)

    def longest_output(
        self, source_length: Any, max_length: OutputLength | None = None
    ) -> Any:
        """Returns the maximum output length of a batch.

        Args:
            source_length: int or int32 scalar tensor, length of the padded sources.
            max_length: int or `RelativeLength`; see `search`.

        Returns:
            int or int32 scalar tensor: at least `max_steps` of each source.
        """
        return self.max_steps(source_length, max_length)
