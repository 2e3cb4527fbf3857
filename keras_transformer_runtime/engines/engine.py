"""The interface of an engine: texts and options in, hypotheses out."""

import abc
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from keras_transformer_runtime.engines.generation_options import GenerationOptions

# Pairs of a source word and a target word, numbers from 0, sorted by the target word.
WordAlignment: TypeAlias = list[tuple[int, int]]


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

    def align(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[WordAlignment]:
        """Aligns the words of texts with the words of their translations.

        White space separates words. A target word is aligned with the source words to
        which the decoder attends most where it predicts the tokens of the target word:
        by the attention of the second-to-last decoder block, a mean over its heads.

        Args:
            sources: list of str.
            targets: list of str, as many.
            batch_size: int, number of pairs that are aligned together.

        Returns:
            For each pair the list of tuples of a source word and a target word, numbers
            from 0, sorted by the target word. It is empty if a text has no words, or is
            longer than the limit of the model.

        Raises:
            ValueError: if the engine cannot align texts.

        Example:

        ```python
        from keras_transformer_runtime.engines.saved_model_engine import (
            SavedModelEngine,
        )

        engine = SavedModelEngine.load("saved_models/pronounce/1")
        print(engine.align(["hello"], ["HH AH L OW"]))
        # [[(0, 0), (0, 1), (0, 2), (0, 3)]]
        ```

        References:
            - [Garg et al., 2019](https://arxiv.org/abs/1909.02074)
        """
        self.check_aligns()
        source_ends = self._word_ends(sources, "source")
        target_ends = self._word_ends(targets, "target")
        pairs_of_ends = zip(source_ends, target_ends, strict=True)
        places = [
            place
            for place, (source, target) in enumerate(pairs_of_ends)
            if _fits(source, self.max_source_length)
            and _fits(target, self.max_target_length)
        ]
        chosen = [sources[place] for place in places], [targets[i] for i in places]
        found = self._positions(*chosen, batch_size) if places else []
        alignments: list[WordAlignment] = [[] for _ in sources]
        for place, positions in zip(places, found, strict=True):
            tokens = np.arange(len(positions))
            words = np.searchsorted(source_ends[place], positions, side="right")
            own = np.searchsorted(target_ends[place], tokens, side="right")
            pairs = sorted({*zip(own.tolist(), words.tolist(), strict=True)})
            alignments[place] = [(source, target) for target, source in pairs]
        return alignments

    def check_aligns(self) -> None:
        """Raises `ValueError` if the engine cannot align texts."""
        if self.is_language_model:
            raise ValueError(
                f"`align` is for models that translate; received {self.path}, a "
                "language model."
            )

    def _word_ends(self, texts: Sequence[str], side: str) -> list[np.ndarray]:
        """Returns for each text how many tokens its first words have: 1, 2, and all."""
        beginnings = []
        for text in texts:
            ends = [word.end() for word in re.finditer(r"\S+", text)]
            beginnings.append([*(text[:end] for end in ends[:-1]), text][: len(ends)])
        lengths = self.measure([text for row in beginnings for text in row], side)
        counts = np.maximum(np.array(lengths, int) - 1, 0)  # without the end token
        return np.split(counts, np.cumsum([len(row) for row in beginnings])[:-1])

    def _positions(
        self, sources: list[str], targets: list[str], batch_size: int
    ) -> list[np.ndarray]:
        """Returns the positions of the source tokens that target tokens attend to most.

        One of each target token without the end token, which no token is aligned with.
        """
        raise ValueError(f"The engine {self.name} must align words; it cannot.")

    @abc.abstractmethod
    def digest(self) -> str:
        """Returns a digest of the model, which identifies unfinished work."""

    def check(self, options: GenerationOptions, prefix: bool = False) -> None:
        """Raises `ValueError` if the engine does not support an option."""
        reason = self.refusal(options, prefix)
        if reason is not None:
            raise ValueError(reason)


def _fits(word_ends: np.ndarray, limit: int | None) -> bool:
    """Returns whether a text has words, and its tokens with the end fit the model."""
    return len(word_ends) > 0 and 0 < word_ends[-1] < (limit or math.inf)
