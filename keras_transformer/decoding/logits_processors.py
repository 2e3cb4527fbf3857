"""Logits processors: rules that change the scores of the next token."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from keras import ops

from keras_transformer.decoding.decoding_model import DecodingModel
from keras_transformer.decoding.search import SearchInputs
from keras_transformer.types import Mask, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints


class History(NamedTuple):
    """The hypotheses before a step.

    Attributes:
        token_ids: int32 tensor `(batch, num_beams, max_length)`, the tokens of each
            hypothesis; entries from `index` on are undefined.
        index: int32 scalar tensor, number of tokens.
        normalizer: float32 tensor `(batch, num_beams, 1)`; a logit minus the
            normalizer is a log-probability.
    """

    token_ids: TokenIds
    index: Tensor  # type: ignore[assignment]
    normalizer: Tensor

    def last(self, count: int) -> TokenIds:
        """Returns the last `count` tokens of each hypothesis.

        Args:
            count: int, number of tokens.

        Returns:
            int32 tensor `(batch, num_beams, count)`, -1 before the first token.
        """
        batch, num_beams, _ = ops.shape(self.token_ids)
        before = ops.full((batch, num_beams, count), -1, "int32")
        token_ids = ops.concatenate([before, self.token_ids], axis=2)
        places = self.index + ops.arange(count, dtype="int32")
        return ops.take(token_ids, places, axis=2)


class LogitsProcessor(Protocol):
    """A rule that changes the logits of the next token.

    It must be hashable, since compiled searches are cached by their arguments.
    If it never raises a logit, set the attribute `only_lowers = True`:
    `BeamSearch` can then stop earlier with the same result.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Changes the logits.

        Args:
            logits: float32 tensor `(batch, num_beams, vocabulary_size)`, the logits of
                the next token; `-inf` bans a token.
            history: a `History`.

        Returns:
            The changed logits. They are not normalised again: the score of a token is
            its changed logit minus the normalizer of the logits of the model. NaN bans
            a token, like `-inf`.
        """
        ...


@dataclass(frozen=True)
class SuppressTokens:
    """Bans tokens at all positions.

    Args:
        token_ids: list of ints, the banned tokens.

    Raises:
        ValueError: if `token_ids` is empty. In a search: if a token is not in the
            vocabulary.

    Example:

    ```python
    unknown = model.target_tokenizer.unknown_token_id
    model.generate(texts, BeamSearch(logits_processors=[SuppressTokens([unknown])]))
    ```
    """

    token_ids: Sequence[int]
    only_lowers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", tuple(map(int, self.token_ids)))
        if not self.token_ids:
            raise ValueError("`token_ids` must have at least one token; received none.")

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Changes the logits; see `LogitsProcessor`."""
        size = logits.shape[-1]
        _check_vocabulary("token_ids", self.token_ids, size)
        banned = np.isin(np.arange(size), self.token_ids)
        return ops.where(ops.convert_to_tensor(banned), -float("inf"), logits)


@dataclass(frozen=True)
class BannedSequences:
    """Bans sequences of tokens: the last token of each, after the others.

    A text in different tokens, or within a word, is not banned; see `BannedTexts`.

    Args:
        sequences: list of lists of ints, the banned sequences.

    Raises:
        ValueError: if `sequences` or one of them is empty. In a search: if a token is
            not in the vocabulary.

    Example:

    ```python
    rows = model.target_tokenizer.tokenize(["New York", "York"]).to_list()
    model.generate(texts, BeamSearch(logits_processors=[BannedSequences(rows)]))
    ```
    """

    sequences: Sequence[Sequence[int]]
    only_lowers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        sequences = tuple(tuple(map(int, sequence)) for sequence in self.sequences)
        object.__setattr__(self, "sequences", sequences)
        if not sequences or not all(sequences):
            raise ValueError(
                "`sequences` must have at least one sequence of at least one token "
                f"each; received `sequences={sequences}`."
            )

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Changes the logits; see `LogitsProcessor`."""
        size, longest = logits.shape[-1], max(map(len, self.sequences))
        ends = np.array([sequence[-1] for sequence in self.sequences], "int32")
        _check_vocabulary("sequences", [*itertools.chain(*self.sequences)], size)
        beginnings = np.full((len(self.sequences), longest), -1, "int32")
        for row, sequence in zip(beginnings, self.sequences, strict=True):
            row[longest - len(sequence) + 1 :] = sequence[:-1]
        last = history.last(longest)[:, :, None, :]
        fits = ops.logical_or(beginnings < 0, ops.equal(last, beginnings))
        matches = ops.cast(ops.all(fits, axis=-1), "float32")
        bans = (ends[:, None] == np.arange(size)).astype("float32")
        return ops.where(ops.matmul(matches, bans) > 0, -float("inf"), logits)


@dataclass(frozen=True)
class NoRepeatNGram:
    """Bans every token that would repeat `size` tokens of the same hypothesis.

    Args:
        size: int, at least 1; with 1 no token occurs twice.

    Raises:
        ValueError: if `size` is not an int of at least 1.

    Example:

    ```python
    model.generate(texts, BeamSearch(logits_processors=[NoRepeatNGram(3)]))
    ```

    References:
        - [Paulus et al., 2017](https://arxiv.org/abs/1705.04304), section 2.5
    """

    size: int
    only_lowers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ints(1, size=self.size)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Changes the logits; see `LogitsProcessor`."""
        before = self.size - 1
        followers = history.token_ids[:, :, before:]
        count = ops.shape(followers)[2]
        generated = ops.arange(count, dtype="int32") + before < history.index
        repeats = ops.broadcast_to(generated, ops.shape(followers))
        last = history.last(before)
        for offset in range(before):
            earlier = history.token_ids[:, :, offset : offset + count]
            newest = last[:, :, offset : offset + 1]
            repeats = ops.logical_and(repeats, ops.equal(earlier, newest))
        banned = _mark_tokens(followers, repeats, logits.shape[-1])
        return ops.where(banned, -float("inf"), logits)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Multiplies the log-probability of each token that has been generated.

    Args:
        factor: positive float; values above 1 make repetition less probable.

    Raises:
        ValueError: if `factor` is not positive.

    Example:

    ```python
    model.generate(texts, BeamSearch(logits_processors=[RepetitionPenalty(1.2)]))
    ```

    References:
        - [Keskar et al., 2019](https://arxiv.org/abs/1909.05858), section 4.1, on
          log-probabilities, which have one sign
    """

    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < float("inf"):
            raise ValueError(
                f"`factor` must be a positive number; received `factor={self.factor}`."
            )

    @property
    def only_lowers(self) -> bool:
        """Whether the factor makes repetition less probable."""
        return self.factor >= 1

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Changes the logits; see `LogitsProcessor`."""
        positions = ops.arange(ops.shape(history.token_ids)[2], dtype="int32")
        shape = ops.shape(history.token_ids)
        generated = ops.broadcast_to(positions < history.index, shape)
        repeated = _mark_tokens(history.token_ids, generated, logits.shape[-1])
        log_probs = logits - history.normalizer
        return ops.where(repeated, log_probs * self.factor + history.normalizer, logits)


def as_logits_processors(
    logits_processors: Sequence[LogitsProcessor],
) -> tuple[LogitsProcessor, ...]:
    """Checks the argument `logits_processors`, and returns it as a hashable tuple."""
    is_sequence = hasattr(logits_processors, "__iter__")
    if not (is_sequence and all(map(callable, logits_processors))):
        raise ValueError(
            "`logits_processors` must be a list of rules such as `[NoRepeatNGram(3)]`; "
            f"received `logits_processors={logits_processors!r}`."
        )
    return tuple(logits_processors)


def process_logits(
    logits: Tensor,  # float32 (batch, num_beams, vocabulary_size)
    history: History,  # the hypotheses before the step
    logits_processors: Sequence[LogitsProcessor],
    model: DecodingModel,
    inputs: SearchInputs,
) -> Tensor:
    """Applies the logits processors, then the constraints of the search.

    A hypothesis begins with its prefix and has the end token at its limit, unless
    `model.forces_end_token` is `False`. Padding is banned, and so is the end token
    before the minimum length.
    """
    processed = logits
    for processor in logits_processors:
        processed = processor(processed, history)
    bounds, forced = _constraints(logits.shape[-1], history.index, model, inputs)
    if logits_processors:
        processed = ops.where(ops.isnan(processed), -float("inf"), processed)
        processed = ops.where(forced, logits, processed)
    return ops.minimum(processed, bounds)


def _constraints(
    vocabulary_size: int, index: Tensor, model: DecodingModel, inputs: SearchInputs
) -> tuple[Tensor, Mask]:
    """Returns upper bounds of the logits, and whether the next token is determined."""
    # The bounds are `inf` or `-inf`, `(batch, 1, vocabulary_size)`; the mask is
    # `(batch, 1, 1)`. Each sequence gathers a row of a small table, which is faster
    # than a comparison of all token ids.
    token_ids = np.arange(vocabulary_size)
    ends = token_ids == model.end_token_id
    real = token_ids != model.pad_token_id
    rows = [real & ~ends, real, ends]  # below the minimum, above it, at the limit
    table = ops.convert_to_tensor(np.where(rows, np.inf, -np.inf).astype("float32"))
    forced = index + 1 >= inputs.limits
    # A model that does not inherit from the protocol need not have the attribute.
    if not getattr(model, "forces_end_token", True):
        forced = ops.zeros_like(forced)
    may_end = ops.cast(index + 1 >= inputs.min_lengths, "int32")
    bounds = ops.take(table, ops.where(forced, 2, may_end), axis=0)[:, None, :]
    forced = forced[:, None, None]
    if inputs.prefixes.shape[1] != 0:
        token = _token_at(index, inputs.prefixes, model.pad_token_id)
        within = ops.not_equal(token, model.pad_token_id)
        within = ops.logical_and(within, ops.logical_not(forced))
        only = ops.where(ops.equal(token_ids, token), float("inf"), -float("inf"))
        bounds = ops.where(within, only, bounds)
        forced = ops.logical_or(forced, within)
    return bounds, forced


def _token_at(index: Tensor, rows: TokenIds, pad_token_id: int) -> TokenIds:
    """Returns the tokens `rows[:, index]`, `(batch, 1, 1)`; padding after the end."""
    batch, length = ops.shape(rows)
    rows = ops.concatenate([rows, ops.full((batch, 1), pad_token_id, "int32")], axis=1)
    place = ops.broadcast_to(
        ops.reshape(ops.minimum(index, length), (1, 1)), (batch, 1)
    )
    return ops.take_along_axis(rows, place, axis=1)[:, :, None]


def _mark_tokens(token_ids: TokenIds, mask: Mask, vocabulary_size: int) -> Mask:
    """Returns which tokens of the vocabulary occur where `mask` is `True`."""
    # `(batch, num_beams, count)` becomes `(batch, num_beams, vocabulary_size)`.
    batch, num_beams, count = ops.shape(token_ids)
    columns = ops.reshape(ops.where(mask, token_ids, vocabulary_size), (-1,))
    rows = ops.repeat(ops.arange(batch * num_beams, dtype="int32"), count)
    marks = ops.zeros((batch * num_beams, vocabulary_size + 1), "float32")
    places = ops.stack([rows, columns], axis=1)
    marks = ops.scatter_update(marks, places, ops.ones_like(columns, "float32"))
    shape = (batch, num_beams, vocabulary_size)
    return ops.reshape(marks[:, :vocabulary_size], shape) > 0


def _check_vocabulary(name: str, token_ids: Sequence[int], size: int) -> None:
    outside = sorted({token for token in token_ids if not 0 <= token < size})
    if outside:
        raise ValueError(
            f"`{name}` must hold token ids of the target vocabulary, from 0 to "
            f"{size - 1}; received {outside}."
        )
