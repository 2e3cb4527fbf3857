"""The options of a search: the same names and defaults in every engine."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, TypedDict, Unpack

from keras_transformer_runtime.arguments import (
    check_ints,
    check_numbers,
    check_unicode,
)

NUM_BEAMS = 4
LENGTH_PENALTY = 0.6
TOP_P = 0.9
REPLACEMENT = "\ufffd"  # replaces the bytes of an incomplete character

# Options of beam search alone, and of sampling alone.
_OF_BEAMS = ("num_beams", "length_penalty", "num_beam_groups", "diversity_penalty")
_OF_SAMPLING = ("temperature", "top_k", "top_p")


class SearchOptions(TypedDict, total=False):
    """The options of a search that a caller sets; `None` = those of the model."""

    num_beams: int | None
    length_penalty: float | None
    num_hypotheses: int | None
    num_beam_groups: int | None
    diversity_penalty: float | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None


class GivenOptions(SearchOptions, total=False):
    """The options that a caller sets; `None` = the setting of the model."""

    max_length: int | None
    min_length: int | None
    seed: int | None
    stop: Sequence[str] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How texts are generated: with greedy search, beam search or sampling.

    Args:
        max_length: int, maximum length of an output in tokens, the end token included;
            `None` = 50 more than the source, or more if the texts that the model was
            trained on have more; 256 new tokens of a language model.
        min_length: int, minimum length of an output in tokens, the end token included.
        num_beams: int, number of beams; 1 = greedy search, or sampling if `samples`.
        length_penalty: float, exponent of the length penalty of beam search; 0 = none.
            The engines divide by different functions of the length.
        num_hypotheses: int, number of outputs of each text.
        num_beam_groups: int, number of groups of beams with different tokens.
        diversity_penalty: float, penalty of a token for each beam of an earlier group
            that chooses it.
        repetition_penalty: float above 0, divisor of the logits of tokens that occur in
            the output; 1 = none.
        no_repeat_ngram_size: int, number of consecutive tokens that occur once in an
            output; 0 = any.
        samples: bool, whether tokens are drawn at random.
        temperature: float above 0, divisor of the logits in sampling.
        top_k: int, number of the most probable tokens to draw from; `None` = all.
        top_p: float, tokens are drawn from the most probable ones whose probabilities
            sum to `top_p`; 1 = from all.
        seed: int, seed of sampling; `None` = random.
        stop: list of str. An output ends in front of the first of these texts.

    Raises:
        ValueError: if an option is out of its range, or options contradict each other.

    Example:

    >>> options = GenerationOptions().with_given(num_beams=5, stop=(".",))
    >>> options.num_beams, options.length_penalty
    (5, 0.6)
    >>> options.with_given(temperature=0.7).samples
    True
    """

    max_length: int | None = None
    min_length: int = 0
    num_beams: int = NUM_BEAMS
    length_penalty: float = LENGTH_PENALTY
    num_hypotheses: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    samples: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = TOP_P
    seed: int | None = None
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_ints(1, optional=True, max_length=self.max_length, top_k=self.top_k)
        check_ints(
            1,
            num_beams=self.num_beams,
            num_hypotheses=self.num_hypotheses,
            num_beam_groups=self.num_beam_groups,
        )
        check_ints(
            0,
            min_length=self.min_length,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
        )
        check_numbers(
            length_penalty=self.length_penalty,
            diversity_penalty=self.diversity_penalty,
        )
        check_numbers(
            above=0,
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
        )
        check_numbers(above=0, most=1, top_p=self.top_p)
        if self.seed is not None and not -(2**31) <= self.seed < 2**31:
            raise ValueError(
                "`seed` must be an int from -2**31 to 2**31 - 1; received "
                f"`seed={self.seed!r}`. Pass `seed % 2**31` instead of a larger seed."
            )
        if self.min_length > (self.max_length or math.inf):
            raise ValueError(
                "`min_length` must be at most `max_length`; received "
                f"`min_length={self.min_length}`, `max_length={self.max_length}`."
            )
        if not self.samples and self.num_hypotheses > self.num_beams:
            raise ValueError(
                "`num_hypotheses` must be at most `num_beams`; received "
                f"`num_hypotheses={self.num_hypotheses}`, `num_beams={self.num_beams}`."
            )
        check_stop(self.stop)
        object.__setattr__(self, "stop", tuple(self.stop))

    def with_given(self, **given: Unpack[GivenOptions]) -> Self:
        """Returns the options with those that a caller sets.

        Args:
            **given: options by name; `None` = unchanged. `temperature`, `top_k` or
                `top_p` select sampling; `num_beams` or `length_penalty` select beam
                search.

        Returns:
            `GenerationOptions`.

        Raises:
            ValueError: if options of sampling and of beam search are given together.
        """
        changes: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        of_beams = [name for name in _OF_BEAMS if name in changes]
        of_sampling = [name for name in _OF_SAMPLING if name in changes]
        if of_beams and of_sampling:
            raise ValueError(
                f"`{of_sampling[0]}` is for sampling; received "
                f"`{of_sampling[0]}={changes[of_sampling[0]]}` together with "
                f"`{of_beams[0]}`, which is for beam search. Remove one."
            )
        if of_sampling:
            changes |= {"samples": True, "num_beams": 1}
        elif of_beams:
            changes["samples"] = False
            if self.samples:
                changes = {"num_beams": NUM_BEAMS, **changes}
        is_sampling = changes.get("samples", self.samples)
        wanted = changes.get("num_hypotheses", self.num_hypotheses)
        if not is_sampling and "num_beams" not in changes:
            changes["num_beams"] = max(self.num_beams, wanted)
        return dataclasses.replace(self, **changes)

    def of_search(self) -> dict[str, Any]:
        """Returns the options that the search depends on, by name.

        Those of another kind of search, `seed` and `stop` are left out.
        """
        unused = {"samples", "seed", "stop"}
        unused |= {*(_OF_BEAMS if self.samples else _OF_SAMPLING)}
        if self.num_beams == 1:
            unused |= {*_OF_BEAMS} - {"num_beams"}
        options = dataclasses.asdict(self)
        return {name: value for name, value in options.items() if name not in unused}

    def cut(self, text: str) -> tuple[str, bool]:
        """Returns a text up to the first text of `stop`, and whether it has one."""
        return cut_text(text, self.stop)

    def cut_pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yields pieces of a text up to the first text of `stop`."""
        return cut_pieces(pieces, self.stop)


def check_stop(stop: Sequence[str]) -> None:
    """Checks the texts in front of which outputs end."""
    if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
        raise ValueError(
            "`stop` must be a list of texts; received "
            f"`stop={stop!r}`. For one text, pass a list of one entry."
        )
    for text in stop:
        check_unicode(text, "stop", repr(text))
        if not text:
            raise ValueError(
                f"`stop` must be texts that are not empty; received `stop={stop!r}`."
            )


def cut_text(text: str, stop: Sequence[str], start: int = 0) -> tuple[str, bool]:
    """Cuts a text in front of the first of some texts.

    Args:
        text: str.
        stop: list of str.
        start: int, the place from which on the text is searched.

    Returns:
        Tuple of the beginning of the text, and whether it has one of `stop`.
    """
    places = [place for end in stop if (place := text.find(end, start)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def cut_pieces(pieces: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Yields pieces of a text, joined as `cut_text` cuts it.

    A piece is held back while it may be the beginning of a text of `stop`.

    Args:
        pieces: iterable of str; it is read up to the first text of `stop`.
        stop: list of str.

    Yields:
        str, not empty.
    """
    waiting = ""
    for piece in pieces:
        waiting += piece
        text, has_ended = cut_text(waiting, stop)
        ready = min(len(text), len(waiting) - _held_back(waiting, stop))
        if ready:
            yield waiting[:ready]
        if has_ended and ready == len(text):
            return
        waiting = waiting[ready:]
    text, _ = cut_text(waiting, stop)
    if text:
        yield text


def final_beginning(text: str, stop: Sequence[str]) -> str:
    """Returns the beginning of an incomplete text that does not change any more.

    What may begin a text of `stop` is left out, and an incomplete character.
    """
    kept, has_ended = cut_text(text, stop)
    if has_ended:
        return kept
    return text[: len(text) - _held_back(text, stop)].rstrip(REPLACEMENT)


def _held_back(text: str, stop: Sequence[str]) -> int:
    """Returns the length of the end of a text that begins a text of `stop`."""
    longest = max(map(len, stop), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(s.startswith(text[-n:]) for s in stop)), 0)
