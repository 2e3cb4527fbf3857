"""Target phrases for the source phrases of a dictionary, such as terminology."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Self

from keras_transformer.text import read_lines

# Words, and single characters that are neither letters nor digits, or belong to a
# script without spaces: Thai, Lao, Burmese, Khmer, Chinese and Japanese.
_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
_WORD = re.compile(rf"[{_SCRIPTS}\U00020000-\U0003ffff]|[^\W{_SCRIPTS}]+|[^\w\s]")


class PhraseDictionary:
    """Finds the entries of a dictionary whose source phrases occur in texts.

    A source phrase occurs in a text as whole words, in the same letter case. If source
    phrases overlap in a text, the first one counts, and of those with the same
    beginning the longest: an entry for `New York` precedes one for `York`.

    A target phrase may end within a word of the output, so that inflected forms and
    compounds of a term count as the term: `Hauses` for `Haus`.

    Args:
        entries: dictionary of target phrases by source phrase.

    Raises:
        ValueError: if there are no entries, or a phrase has no words.

    Example:

    >>> dictionary = PhraseDictionary({"New York": "Nueva York", "York": "York"})
    >>> dictionary.constraints(["From York to New York.", "Yorkshire"])
    [['York', 'Nueva York'], []]
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        if not entries:
            raise ValueError("`entries` must have at least one entry; received none.")
        self._targets: dict[tuple[str, ...], str] = {}
        for source, target in entries.items():
            words = tuple(_WORD.findall(source))
            if not words or not target.strip():
                raise ValueError(
                    "`entries` must have a source phrase and a target phrase with at "
                    f"least one character each; received {source!r}: {target!r}."
                )
            self._targets[words] = target
        self._longest = max(map(len, self._targets))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Self:
        """Reads a dictionary from a text file.

        Args:
            path: path of the file, UTF-8, plain or gzip (`.gz`). Each line has a source
                phrase, a tab and a target phrase. Blank lines are skipped.

        Returns:
            A `PhraseDictionary`.

        Raises:
            ValueError: if a line does not have two phrases, or a source phrase has two
                different target phrases.
            OSError: if the file cannot be read.

        Example:

        ```python
        dictionary = PhraseDictionary.from_file("terms.tsv")
        translate_file(model, "news.en", "news.de", dictionary=dictionary)
        ```
        """
        entries: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            source, *targets = [part.strip() for part in line.split("\t")]
            if len(targets) != 1 or not _WORD.search(source) or not targets[0]:
                raise ValueError(
                    "A line of a dictionary must have a source phrase, a tab and a "
                    f"target phrase; line {number} of `{path}` is {line!r:.200}."
                )
            if entries.setdefault(source, targets[0]) != targets[0]:
                raise ValueError(
                    "A dictionary must have one target phrase for each source phrase; "
                    f"`{path}` has {entries[source]!r} and, in line {number}, "
                    f"{targets[0]!r} for {source!r}. Remove one."
                )
        return cls(entries)

    def constraints(self, texts: Sequence[str]) -> list[list[str]]:
        """Returns the target phrases for each text.

        Args:
            texts: list of str, the sources.

        Returns:
            Lists of str, each phrase once: the argument `constraints` of `generate`.
        """
        return [self._phrases(_WORD.findall(text)) for text in texts]

    def digest(self) -> str:
        """Returns a digest of the entries."""
        entries = sorted((" ".join(words), t) for words, t in self._targets.items())
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._targets)

    def _phrases(self, words: list[str]) -> list[str]:
        found: dict[str, None] = {}
        start = 0
        while start < len(words):
            ends = range(min(start + self._longest, len(words)), start, -1)
            spans = (tuple(words[start:end]) for end in ends)
            span = next((each for each in spans if each in self._targets), None)
            if span is not None:
                found[self._targets[span]] = None
            start += 1 if span is None else len(span)
        return [*found]
