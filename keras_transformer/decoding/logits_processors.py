"""What may come next, and how gladly: rules that change the logits of a step."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.decoding.search import Sentences, StepModel


class History(NamedTuple):
    """What a rule can go by.

    Attributes:
        token_ids: int32 tensor `(batch, num_beams, max_length)`, each hypothesis so
            far; what stands from `index` on means nothing.
        index: int32 scalar tensor, how many tokens that is.
        normalizer: float32 tensor `(batch, num_beams, 1)`; a logit less this is a
            log-probability.
    """

    token_ids: Any
    index: Any
    normalizer: Any

    def last(self, count: int) -> Any:
        """The last tokens, int32 `(batch, num_beams, count)`, -1 before the first."""
        batch, num_beams, _ = ops.shape(self.token_ids)
        before = ops.full((batch, num_beams, count), -1, "int32")
        token_ids = ops.concatenate([before, self.token_ids], axis=2)
        places = self.index + ops.arange(count, dtype="int32")
        return ops.take(token_ids, places, axis=2)


class LogitsProcessor(Protocol):
    """A rule; hashable, as a search with other rules is compiled anew.

    Args:
        logits: float32 tensor `(batch, num_beams, vocabulary_size)`, those of the
            next tokens; `-inf` bans one.
        history: a `History`.

    Returns:
        The changed logits. They are not normalised again: the score of a token is
        its changed logit less the normaliser of the model's own.

    A rule that never raises a logit may say so by an attribute `only_lowers = True`:
    `BeamSearch` can then prove sooner that nothing better is to come.
    """

    def __call__(self, logits: Any, history: History) -> Any:
        """Changes the logits."""
        ...


@dataclass(frozen=True)
class SuppressTokens:
    """Bans tokens everywhere.

    Args:
        token_ids: ints, the tokens.

    Raises:
        ValueError: if there are none, or, when it is used, if one is not in the
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
            raise ValueError("`token_ids` must name at least one token; received none.")

    def __call__(self, logits: Any, history: History) -> Any:
        """Changes the logits; see `LogitsProcessor`."""
        size = logits.shape[-1]
        _check_vocabulary("token_ids", self.token_ids, size)
        banned = np.isin(np.arange(size), self.token_ids)
        return ops.where(ops.convert_to_tensor(banned), -float("inf"), logits)


@dataclass(frozen=True)
class BannedSequences:
    """Bans sequences of tokens: the last token of each where the others have come.

    Args:
        sequences: lists of ints.

    Raises:
        ValueError: if there are none, one is empty, or, when it is used, if a token
            is not in the vocabulary.

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
                "`sequences` must hold at least one sequence, and each at least one "
                f"token; received `sequences={sequences}`."
            )

    def __call__(self, logits: Any, history: History) -> Any:
        """Changes the logits; see `LogitsProcessor`."""
        size, longest = logits.shape[-1], max(map(len, self.sequences))
        ends = np.array([sequence[-1] for sequence in self.sequences], "int32")
        _check_vocabulary("sequences", [*itertools.chain(*self.sequences)], size)
        beginnings = np.full((len(self.sequences), longest), -1, "int32")
        for row, sequence in zip(beginnings, self.sequences, strict=True):
            row[longest - len(sequence) + 1 :] = sequence[:-1]
        last = history.last(longest)[:, :, None, :]
        fits = ops.logical_or(beginnings < 0, ops.equal(last, beginnings))
        come = ops.cast(ops.all(fits, axis=-1), "float32")
        bans = (ends[:, None] == np.arange(size)).astype("float32")
        return ops.where(ops.matmul(come, bans) > 0, -float("inf"), logits)


@dataclass(frozen=True)
class NoRepeatNGram:
    """Bans every token that would repeat `size` tokens of the same hypothesis.

    Args:
        size: int of at least 1; 1 = no token comes twice.

    Raises:
        ValueError: if `size` is no int or below 1.

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

    def __call__(self, logits: Any, history: History) -> Any:
        """Changes the logits; see `LogitsProcessor`."""
        before = self.size - 1
        followers = history.token_ids[:, :, before:]
        count = ops.shape(followers)[2]
        come = ops.arange(count, dtype="int32") + before < history.index
        repeats = ops.broadcast_to(come, ops.shape(followers))
        last = history.last(before)
        for offset in range(before):
            then = history.token_ids[:, :, offset : offset + count]
            now = last[:, :, offset : offset + 1]
            repeats = ops.logical_and(repeats, ops.equal(then, now))
        banned = _marked(followers, repeats, logits.shape[-1])
        return ops.where(banned, -float("inf"), logits)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Multiplies the log-probability of each token that has come already.

    Args:
        factor: positive float; above 1 repetition becomes rarer, below more often.

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
        """Whether repetition becomes rarer."""
        return self.factor >= 1

    def __call__(self, logits: Any, history: History) -> Any:
        """Changes the logits; see `LogitsProcessor`."""
        positions = ops.arange(ops.shape(history.token_ids)[2], dtype="int32")
        come = ops.broadcast_to(positions < history.index, ops.shape(history.token_ids))
        come = _marked(history.token_ids, come, logits.shape[-1])
        log_probs = logits - history.normalizer
        return ops.where(come, log_probs * self.factor + history.normalizer, logits)


def as_rules(logits_processors: Any) -> tuple[LogitsProcessor, ...]:
    """Makes a tuple of the rules that a search is given.

    Args:
        logits_processors: the argument of that name.

    Returns:
        The rules, in order.

    Raises:
        ValueError: if it is no sequence of functions of logits and history.
    """
    rules = (
        tuple(logits_processors) if hasattr(logits_processors, "__iter__") else (None,)
    )
    if not all(map(callable, rules)):
        raise ValueError(
            "`logits_processors` must be a list of rules such as `[NoRepeatNGram(3)]`; "
            f"received `logits_processors={logits_processors!r}`."
        )
    return rules


def process(
    logits: Any,
    history: History,
    logits_processors: Sequence[LogitsProcessor],
    model: StepModel,
    sentences: Sentences,
) -> Any:
    """Applies the rules, the given ones and those that no search is without.

    The latter are the stronger: at its limit a hypothesis ends, in its prefix it
    goes on with that, and elsewhere there is no padding, and no end token before
    the least length.

    Args:
        logits: float32 tensor `(batch, num_beams, vocabulary_size)`.
        history: the hypotheses so far.
        logits_processors: the rules, in order.
        model: for the special tokens.
        sentences: for limits, least lengths and prefixes.

    Returns:
        The changed logits.
    """
    own = logits
    for processor in logits_processors:
        logits = processor(logits, history)
    bounds, forced = _fixed_rules(logits.shape[-1], history.index, model, sentences)
    if logits_processors:
        logits = ops.where(forced, own, logits)
    return ops.minimum(logits, bounds)


def _fixed_rules(
    vocabulary_size: int, index: Any, model: StepModel, sentences: Sentences
) -> tuple[Any, Any]:
    """How high each logit may be, `inf` or `-inf`; boolean, where a token must come.

    Of shapes `(batch, 1, vocabulary_size)` and `(batch, 1, 1)`. A sentence takes its
    row of a small table, as to compare and choose takes longer than to copy.
    """
    token_ids = np.arange(vocabulary_size)
    ends = token_ids == model.end_token_id
    real = token_ids != model.pad_token_id
    early, in_time, at_limit = _bounds(real & ~ends), _bounds(real), _bounds(ends)
    table = ops.convert_to_tensor(np.stack([early, in_time, at_limit]))
    forced = index + 1 >= sentences.limits
    late = ops.cast(index + 1 >= sentences.min_lengths, "int32")
    bounds = ops.take(table, ops.where(forced, 2, late), axis=0)[:, None, :]
    forced = forced[:, None, None]
    if sentences.prefixes.shape[1] != 0:
        wanted = _token_at(index, sentences.prefixes, model.pad_token_id)
        within = ops.not_equal(wanted, model.pad_token_id)
        within = ops.logical_and(within, ops.logical_not(forced))
        only = ops.where(ops.equal(token_ids, wanted), float("inf"), -float("inf"))
        bounds = ops.where(within, only, bounds)
        forced = ops.logical_or(forced, within)
    return bounds, forced


def _bounds(allowed: np.ndarray) -> np.ndarray:
    return np.where(allowed, np.inf, -np.inf).astype("float32")


def _token_at(index: Any, rows: Any, pad_token_id: int) -> Any:
    """Int32 `(batch, 1, 1)`, padding from the end of `rows (batch, length)` on."""
    batch, length = ops.shape(rows)
    rows = ops.concatenate([rows, ops.full((batch, 1), pad_token_id, "int32")], axis=1)
    place = ops.broadcast_to(
        ops.reshape(ops.minimum(index, length), (1, 1)), (batch, 1)
    )
    return ops.take_along_axis(rows, place, axis=1)[:, :, None]


def _marked(token_ids: Any, chosen: Any, vocabulary_size: int) -> Any:
    """Boolean `(batch, num_beams, vocabulary_size)`: which tokens are chosen.

    Both arguments are `(batch, num_beams, any)`.
    """
    batch, num_beams, count = ops.shape(token_ids)
    columns = ops.reshape(ops.where(chosen, token_ids, vocabulary_size), (-1,))
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
            f"`{name}` must hold token ids from 0 to {size - 1}, those of the target "
            f"vocabulary; received {outside}."
        )
