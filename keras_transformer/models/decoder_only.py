"""The base class of decoder-only models: their steps of decoding, and prompts."""

from typing import Any, NoReturn

from keras import ops

from keras_transformer.backend.int32_sum import int32_sum
from keras_transformer.decoding import OutputLength, Sampling, Search
from keras_transformer.decoding.lengths import (
    default_lengths,
    output_lengths,
    smaller,
)
from keras_transformer.decoding.search_options import explains_search_options
from keras_transformer.inference.alignment import Alignment
from keras_transformer.inference.constraints import Constraints
from keras_transformer.inference.request import Request
from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.inference.text_windows import score_texts
from keras_transformer.inference.token_ids import Sequences
from keras_transformer.layers import padding_mask
from keras_transformer.models.cached_decoder import CachedDecoder, DecoderState
from keras_transformer.models.prompt_caches import PromptCaches
from keras_transformer.types import Size, Tensor, TokenIds

# The maximum number of new tokens if `generate` receives none.
DEFAULT_NEW_TOKENS = 256


class DecoderOnlyState(DecoderState, total=False):
    """The state of decoding.

    Attributes:
        last_tokens: int32 tensor `(batch,)`, the last token of each prompt.
    """

    last_tokens: TokenIds


class DecoderOnly(CachedDecoder):
    """Base class of models without an encoder, which continue prompts.

    The source of `generate`, `score` and the other functions is the prompt, and the
    target is its continuation. An empty prompt is the start token.

    Attributes:
        max_length: int, maximum number of tokens that the model attends to, or `None`.
        add_start_token: bool, whether texts begin with the start token.
    """

    max_length: int | None
    add_start_token: bool
    length_arguments = ("max_length", "max_length")
    default_search: Search = Sampling(top_p=0.9)
    forces_end_token = False
    has_cross_attention = False

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> DecoderOnlyState:
        """Computes the keys and values of the prompts, all in one pass.

        Args:
            encoder_token_ids: int tensor `(batch, prompt_length)`, the prompts, padded
                at the end.
            num_beams: int, number of hypotheses of each prompt.
            max_length: int or int32 scalar tensor, number of steps that the state has
                room for.
            return_attention: must be `False`.

        Returns:
            The state of the first step.

        Raises:
            ValueError: if `return_attention` is `True`.
        """
        if return_attention:
            _refuse("a `coverage_penalty` and other searches with `needs_attention`")
        token_ids = self.prepare_sources(encoder_token_ids)
        last = prompt_lengths(token_ids, self.pad_token_id)[:, None] - 1
        index = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None]
        embedded = self.embed_target(token_ids, training=False)
        caches = PromptCaches.of(
            self.decoder, embedded, index < last, num_beams, max_length
        )
        last_tokens = ops.take_along_axis(token_ids, last, axis=1)[:, 0]
        return {"caches": caches, "last_tokens": last_tokens}

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: DecoderOnlyState
    ) -> tuple[Tensor, DecoderOnlyState]:
        """Computes the logits of the next tokens; see `GenerativeModel.decode_step`."""
        last = ops.cast(state["last_tokens"][:, None], token_ids.dtype)
        token_ids = ops.where(ops.equal(index, 0), last, token_ids)
        first = state["caches"].first_positions()[:, None]
        positions = ops.broadcast_to(first + index, ops.shape(token_ids))
        x = self.embed_target(token_ids, positions, training=False)
        x, caches = state["caches"].step(self.decoder, x, index, positions)
        logits = self.compute_logits(x, state.get("output_kernel"))
        return logits, {**state, "caches": caches}

    def max_steps(
        self, source_lengths: Any, max_length: OutputLength | None = None
    ) -> Any:
        """Returns the maximum numbers of new tokens, as the context limits them.

        Args:
            source_lengths: int or int32 tensor, lengths of prompts in tokens.
            max_length: int or `RelativeLength`; see `generate`.

        Returns:
            int or int32 tensor, of the type and shape of `source_lengths`.
        """
        steps = self._new_tokens(source_lengths, max_length)
        if self.max_length is None:
            return steps
        return smaller(steps, self.max_length + 1 - source_lengths)

    def longest_output(
        self, source_length: Any, max_length: OutputLength | None = None
    ) -> Any:
        """Returns the maximum number of new tokens of a batch of prompts.

        Args:
            source_length: int or int32 scalar tensor, length of the padded prompts.
            max_length: int or `RelativeLength`; see `generate`.

        Returns:
            int or int32 scalar tensor.
        """
        steps = self._new_tokens(source_length, max_length)
        return steps if self.max_length is None else smaller(steps, self.max_length)

    def _new_tokens(self, prompt_lengths: Any, max_length: OutputLength | None) -> Any:
        if max_length is not None:
            return output_lengths(max_length, prompt_lengths)
        return default_lengths(
            prompt_lengths, self.output_length_ratio, DEFAULT_NEW_TOKENS
        )

    @explains_search_options
    def generate(
        self,
        inputs: Sequences,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        batch_size: int = 64,
        return_scores: bool = False,
        *,
        return_truncated: bool = False,
        return_alignments: bool = False,
        min_length: OutputLength = 0,
        prefix: Sequences | None = None,
        seed: int | None = None,
        distinct_texts: bool = False,
        constraints: Constraints | None = None,
        include_prompt: bool = False,
    ) -> Any:
        """Continues prompts with a compiled search.

        The result of one prompt does not depend on the others. An empty prompt is
        continued from the start token.

        Args:
            inputs: a prompt or a list of prompts, if the model has a tokenizer; or
                token ids: a list of lists of ints, or an int array
                `(batch, prompt_length)` padded at the end. Instead of a list, also an
                array, a tensor or a `tf.data.Dataset`, batched or not.
            search: the search; `Sampling(top_p=0.9)` if `None`. `GreedySearch()` and
                `BeamSearch()` give the most probable text. They suit answers, and cause
                repetitions in running text.
            max_length: int or `RelativeLength`, maximum number of new tokens, the end
                token included; `None` = 256, or `output_length_ratio` times the length
                of the prompt if this is more. A text that reaches it is cut off there,
                without an end token. The `max_length` of the model limits the sum of
                prompt and new tokens.
            batch_size: int, number of prompts continued together.
            return_scores: bool, for texts: whether to return the scores as well.
            return_truncated: bool, for texts: whether to return as well which of them
                have reached the maximum length without an end token.
            return_alignments: must be `False`.
            min_length: int or `RelativeLength`, minimum number of new tokens.
            prefix: the beginning of each continuation: a text for a text; or one entry
                for each prompt, texts or token ids without end token, which may be
                empty. The scores are those of the whole continuation.
            seed: int from -2**31 to 2**31 - 1, seed of `Sampling`; if `None`, NumPy
                draws it, so `keras.utils.set_random_seed` determines it.
            distinct_texts: bool, for texts: whether each text of a prompt is returned
                once, with its best hypothesis.
            constraints: the phrases that must occur in each continuation; see
                `GenerativeModel.generate`. Requires a `BeamSearch`.
            include_prompt: bool, for texts: whether each text begins with its prompt.
                With a tokenizer of subwords this also keeps the space between them.

        Returns:
            For token ids a `SearchResult` of NumPy arrays, without the prompts. For
            texts a list of texts (for a single text, a text), or of lists of texts if
            the search returns several hypotheses. With `return_scores=True` a tuple
            with a float32 array of scores `(batch,)` or `(batch, num_hypotheses)`; with
            `return_truncated=True` also with a boolean array of this shape.

        Raises:
            ValueError: if a token id is not in the vocabulary, a prompt is longer than
                `max_length` of the model, the inputs are texts and the model has no
                tokenizer, or an argument is out of range.
            FloatingPointError: if a hypothesis ends because the logits of a step have
                no probabilities: one is NaN or `inf`, or all are `-inf`.

        Example:

        ```python
        language_model.generate("A man", GreedySearch(), max_length=20)
        prompts = ["A man", "Two dogs run"]
        language_model.generate(prompts, Sampling(top_p=0.9), include_prompt=True)
        language_model.generate([[2, 17, 25]]).token_ids
        ```
        """
        if return_alignments:
            _refuse("`return_alignments`")
        request = Request(search or self.default_search, max_length, min_length)
        return self._generate(
            inputs,
            request,
            prefix,
            seed,
            batch_size,
            return_scores=return_scores,
            return_truncated=return_truncated,
            distinct_texts=distinct_texts,
            include_source=include_prompt,
            constraints=constraints,
        )

    def score_texts(
        self,
        texts: Sequences,
        context: int | None = None,
        stride: int | None = None,
        batch_size: int = 64,
    ) -> ScoreResult:
        """Computes the log-probability of texts of any length.

        A text that is longer than `context` is scored in windows, which overlap:
        `stride` tokens of a window are scored, and those before them are only context.
        The first tokens of a text have all their context.

        With `add_start_token` the start token precedes each text and the end token
        follows it. Without it, the first token of a text is only context, and no end
        token is added.

        Args:
            texts: a text or a list of texts, if the model has a tokenizer; or token
                ids, likewise without start and end tokens.
            context: int, number of tokens that a window attends to; `None` =
                `max_length` of the model. A model without `max_length` requires it: the
                length of the windows that it was trained on, since most models predict
                poorly beyond it.
            stride: int from 1 to `context`, number of tokens that a window scores.
                `context` = windows without overlap, the fastest; 1 = each token with
                the maximum context. `None` = half of `context`.
            batch_size: int, number of windows scored together.

        Returns:
            A `ScoreResult` of NumPy arrays, one entry for each text, with the
            `perplexity` of a token.

        Raises:
            ValueError: if `context` or `stride` is missing or out of range, or a token
                id is not in the vocabulary.

        Example:

        ```python
        result = language_model.score_texts(["A man sees two dogs."], context=32)
        print(result.scores.shape, result.perplexity > 1)  # (1,) True
        ```
        """
        return score_texts(self, texts, context, stride, batch_size)

    def align(
        self,
        sources: Sequences,
        targets: Sequences,
        layer: int | None = None,
        batch_size: int = 64,
    ) -> list[Alignment]:
        """Raises `ValueError`: the model has no cross-attention."""
        _refuse("`align`")

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Raises `ValueError`: the model has no cross-attention."""
        _refuse("`cross_attention`")


def prompt_lengths(token_ids: TokenIds, pad_token_id: int) -> Tensor:
    """Returns the lengths of prompts.

    Args:
        token_ids: int tensor `(batch, prompt_length)`, padded at the end.
        pad_token_id: int.

    Returns:
        int32 tensor `(batch,)`, at least 1.
    """
    real = padding_mask(token_ids, pad_token_id)
    return ops.maximum(int32_sum(real, axis=1), 1)


def _refuse(argument: str) -> NoReturn:
    raise ValueError(
        f"{argument} requires a model with cross-attention, such as `Seq2Seq`; "
        "received a `CausalLM`, which has no source."
    )
