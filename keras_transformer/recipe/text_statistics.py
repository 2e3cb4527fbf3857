"""Statistics of a training text, from which a run chooses its options."""

import collections
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from keras_transformer.dataset.running_text import text_pieces
from keras_transformer.dataset.text_pairs import Pair
from keras_transformer.text.training_text import sample_items

SAMPLE = 100_000  # pairs or lines; words are counted in a sample of a larger text
RARE = 2  # times that a rare word occurs at most


class SideStatistics(NamedTuple):
    """Statistics of one side of a sample."""

    words: int
    distinct_words: int
    rare_words: int  # that occur at most twice
    characters: int  # without spaces
    letters: int  # and marks
    distinct_characters: int
    distinct_letters: int  # of decomposed characters

    @classmethod
    def of(cls, texts: Iterable[str]) -> "SideStatistics":
        """Counts the words of texts."""
        counts = collections.Counter(word for text in texts for word in text.split())
        characters: collections.Counter[str] = collections.Counter()
        for word, count in counts.items():
            for character in word:
                characters[character] += count
        return cls(
            words=counts.total(),
            distinct_words=len(counts),
            rare_words=sum(count for count in counts.values() if count <= RARE),
            characters=characters.total(),
            letters=sum(
                count
                for character, count in characters.items()
                if unicodedata.category(character)[0] in "LM"
            ),
            distinct_characters=len(characters),
            distinct_letters=len({*unicodedata.normalize("NFD", "".join(characters))}),
        )

    @property
    def rare_fraction(self) -> float:
        """Fraction of the words that occur at most twice."""
        return self.rare_words / max(self.words, 1)

    @property
    def word_length(self) -> float:
        """Mean number of characters of a word."""
        return self.characters / max(self.words, 1)


class TextStatistics(NamedTuple):
    """Statistics of a training text."""

    pairs: int
    sample: list[Pair]  # at most 100,000
    source: SideStatistics  # of the sample
    target: SideStatistics

    @classmethod
    def of(cls, pairs: Iterator[Pair]) -> "TextStatistics":
        """Reads a training text."""
        count = 0

        def counted() -> Iterator[Pair]:
            nonlocal count
            for pair in pairs:
                count += 1
                yield pair

        sample = sample_items(counted(), SAMPLE, seed=0)
        sides = ([pair[side] for pair in sample] for side in (0, 1))
        return cls(count, sample, *map(SideStatistics.of, sides))


class RunningTextStatistics(NamedTuple):
    """Statistics of running text."""

    characters: int
    documents: int
    lines: int
    sample: list[str]  # at most 100,000 lines

    @classmethod
    def of(
        cls, files: list[str], documents: str | None, column: str | None = None
    ) -> "RunningTextStatistics":
        """Reads a training text."""
        counts: collections.Counter[str] = collections.Counter()

        def counted() -> Iterator[str]:
            for piece in text_pieces(files, documents, column):
                if piece is None:
                    counts["documents"] += 1
                else:
                    counts["characters"] += len(piece)
                    counts["lines"] += 1
                    yield piece

        sample = sample_items(counted(), SAMPLE, seed=0)
        return cls(
            counts["characters"], counts["documents"] or 1, counts["lines"], sample
        )

    @property
    def scale(self) -> float:
        """Number of lines, divided by those of the sample."""
        return self.lines / max(len(self.sample), 1)
