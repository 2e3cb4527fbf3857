"""The interface of an engine: texts and options in, hypotheses out."""

import abc
import math
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from keras_transformer_runtime.engines.generation_options import GenerationOptions


class Hypothesis(NamedTuple):
    """An output of a text.

    Attributes:
        text: str, the output.
        score: float, its score, as the engine defines it; NaN if it was not computed.
        truncated: bool, whether it has reached the maximum length, so that its end may
            be missing.
        length: int, number of its tokens, the end token included; 0 if the engine does
            not count them.
    """

    text: str
    score: float = 0.0
    truncated: bool = False
    length: int = 0


class TokenScores(NamedTuple):
    """The tokens of a target, its end token included, and their log-probabilities."""

    tokens: list[str]
    log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        """The log-probability of the target."""
        return math.fsum(self.log_probabilities)


# Receives the place of a text, and the beginning of its output that is final. It
# returns whether the output shall end there.
OnText: TypeAlias = Callable[[int, str], bool]


def warn_of_truncation(
    count: int, total: int, remedy: str = "Use a greater `max_length`."
) -> None:
    """Warns that `count` of `total` texts have reached the maximum length."""
    if count:
        warnings.warn(
            f"{count:,} of {total:,} outputs have reached the maximum length. They may "
            f"lack their ends. {remedy}",
            stacklevel=5,
        )


def without_beginning(pieces: Iterable[str], length: int) -> Iterator[str]:
    """Yields pieces of a text without its first `length` characters."""
    for piece in pieces:
        if rest := piece[length:]:
            yield rest
        length = max(0, length - len(piece))


class Engine(abc.ABC):
    """Generates texts with an exported model.

    Attributes:
        name: str, the name of the engine in the option `--engine`.
        path: the file or folder of the model.
        options: `GenerationOptions`, the settings of the model.
        is_language_model: bool, whether the model continues texts; otherwise it
            translates them.
        max_source_length: int, maximum number of tokens of a text; `None` = any.
        max_target_length: the same of an output.
        languages: tuple of the codes of the source and the target language; `None` =
            unknown.
    """

    name: ClassVar[str]
    path: pathlib.Path
    options: GenerationOptions
    is_language_model: bool
    max_source_length: int | None
    max_target_length: int | None
    languages: tuple[str, str] | None = None

    @abc.abstractmethod
    def measure(self, texts: Sequence[str], side: str, first: int = 1) -> list[int]:
        """Counts the tokens of texts, the end token of a text to translate included.

        Args:
            texts: list of str.
            side: `"source"` or `"target"`, whose tokenizer counts.
            first: int, number of the line of the first text, for error messages.

        Returns:
            List of ints; 0 for a text to translate that has no words.

        Raises:
            ValueError: if a text has a language token that the vocabulary lacks.
        """

    @abc.abstractmethod
    def refusal(self, options: GenerationOptions, prefix: bool = False) -> str | None:
        """Returns which option the engine does not support, or `None`.

        Args:
            options: the `GenerationOptions` of a request.
            prefix: bool, whether the outputs have a given beginning.

        Returns:
            str, a sentence that names the option and a remedy.
        """

    @abc.abstractmethod
    def generate(
        self,
        texts: Sequence[str],
        options: GenerationOptions,
        *,
        prefixes: Sequence[str] | None = None,
        include_prompt: bool = False,
        batch_size: int = 64,
        on_text: OnText | None = None,
    ) -> list[list[Hypothesis]]:
        """Generates the outputs of texts. The output of a text without words is empty.

        Args:
            texts: list of str.
            options: the `GenerationOptions`.
            prefixes: list of str, the beginning of each output; `None` = none.
            include_prompt: bool, whether each output of a language model begins with
                its prompt.
            batch_size: int, number of texts that are decoded together.
            on_text: function that receives the beginnings of outputs while they are
                generated, if the engine can do so with these options. It is called in
                another thread. `None` = none.

        Returns:
            For each text, the list of its `Hypothesis`, best first.

        Raises:
            ValueError: if the engine does not support an option, or a text is too long.
        """

    def generate_batches(
        self,
        batches: Iterable[list[str]],
        options: GenerationOptions,
        prefix: str = "",
    ) -> Iterator[list[list[Hypothesis]]]:
        """Yields the outputs of each batch of texts, in their order."""
        for batch in batches:
            prefixes = [prefix] * len(batch) if prefix else None
            yield self.generate(
                batch, options, prefixes=prefixes, batch_size=len(batch)
            )

    @abc.abstractmethod
    def stream(
        self, text: str, options: GenerationOptions, prefix: str = ""
    ) -> Iterator[str]:
        """Yields the output of a text in pieces, as they are generated.

        Args:
            text: the text.
            options: the `GenerationOptions`, with one hypothesis.
            prefix: the beginning of the output, which is not yielded.
        """

    @abc.abstractmethod
    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[TokenScores]:
        """Returns the log-probability of each target, given its source.

        Args:
            sources: list of str.
            targets: list of str.
            batch_size: int, number of pairs that are scored together.

        Returns:
            List of `TokenScores`.
        """

    @abc.abstractmethod
    def digest(self) -> str:
        """Returns a digest of the model, which identifies unfinished work."""

    def check(self, options: GenerationOptions, prefix: bool = False) -> None:
        """Raises `ValueError` if the engine does not support an option."""
        reason = self.refusal(options, prefix)
        if reason is not None:
            raise ValueError(reason)
