"""Target phrases for the source phrases of a dictionary, such as terminology."""

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import regex

from keras_transformer_runtime.text_files import read_lines
from keras_transformer_runtime.tokenizers.invisible_characters import replacements

# The ends of words, of Unicode Standard Annex 29.
_END = regex.compile(r"(?V1w)\b")
# French and Italian words before an apostrophe and a vowel, which the annex joins to
# the next word. A zero width space separates them.
_ELISION = re.compile(
    r"\b(?:[cdjlmnst]|[a-zà-ù]*qu|[a-zà-ù]*ll|un)['’](?=[haeiouyà-æè-ïò-öœù-ü])",
    re.IGNORECASE,
)
_SEPARATOR = "\u200b"
# What makes a word in front of it a part of another one: C++, C#, rock'n'roll.
_REST = re.compile(rf"#|['’+]{_SEPARATOR}?[\w'’+#]")
# Zero width joiner and the forms of emoji, which change no word.
_IGNORED = dict.fromkeys([0x200D, 0xFE0E, 0xFE0F])
_NORMALIZED = {ord(before): after for before, after in replacements().items()}


class _Word(NamedTuple):
    text: str
    is_part: bool  # whether it ends in front of `_REST`


class PhraseDictionary:
    """Finds the entries of a dictionary whose source phrases occur in texts.

    A source phrase occurs in a text as whole words, in the same letter case. If source
    phrases overlap in a text, the first one counts, and of those with the same
    beginning the longest: an entry for `New York` precedes one for `York`.

    Words end where Unicode's text segmentation ends them; `don` does not occur in
    `don't`, but `eau` occurs in `l'eau`. A source phrase does not occur in front of
    `#`, nor in front of `+` or an apostrophe that a letter or one more of these
    follows: `C` does not occur in `C#` and `C++`. Equivalent spellings of Unicode are
    equal (NFC and NFD), and soft hyphens and similar characters do not count. In the
    scripts without spaces, Thai, Lao, Khmer, Burmese, Chinese and Hiragana, each
    character with its marks is a word, so a source phrase also occurs within a longer
    word.

    A target phrase may end within a word of the output, so that inflected forms and
    compounds of a term count as the term: `Hauses` for `Haus`.

    Args:
        entries: dictionary of target phrases by source phrase.

    Raises:
        ValueError: if there are no entries, a phrase has no words, or two equal source
            phrases have different target phrases.

    Example:

    >>> dictionary = PhraseDictionary({"New York": "Nueva York", "York": "York"})
    >>> dictionary.constraints(["From York to New York.", "Yorkshire"])
    [['York', 'Nueva York'], []]

    References:
        - [Unicode Standard Annex 29](https://www.unicode.org/reports/tr29/), word
          boundaries
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        if not entries:
            raise ValueError("`entries` must have at least one entry; received none.")
        self._targets: dict[tuple[str, ...], str] = {}
        for source, target in entries.items():
            words = tuple(word.text for word in _words(source))
            if not words or not target.strip():
                raise ValueError(
                    "`entries` must have a source phrase and a target phrase with at "
                    f"least one character each; received {source!r}: {target!r}."
                )
            if self._targets.setdefault(words, target) != target:
                raise ValueError(
                    "`entries` must have one target phrase for each source phrase; "
                    f"received {self._targets[words]!r} and {target!r} for {source!r}. "
                    "Remove one."
                )
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
            if len(targets) != 1 or not _words(source) or not targets[0]:
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

    @property
    def targets(self) -> list[str]:
        """The target phrases, each once."""
        return [*dict.fromkeys(self._targets.values())]

    def constraints(self, texts: Sequence[str]) -> list[list[str]]:
        """Returns the target phrases for each text.

        Args:
            texts: list of str, the sources.

        Returns:
            Lists of str, each phrase once: the argument `constraints` of `generate`.
        """
        return [self._phrases(_words(text)) for text in texts]

    def digest(self) -> str:
        """Returns a digest of the entries."""
        entries = sorted((" ".join(words), t) for words, t in self._targets.items())
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._targets)

    def _phrases(self, words: list[_Word]) -> list[str]:
        found: dict[str, None] = {}
        start = 0
        while start < len(words):
            ends = range(min(start + self._longest, len(words)), start, -1)
            spans = (
                tuple(word.text for word in words[start:end])
                for end in ends
                if not words[end - 1].is_part
            )
            span = next((each for each in spans if each in self._targets), None)
            if span is not None:
                found[self._targets[span]] = None
            start += 1 if span is None else len(span)
        return [*found]


def check_spelled(targets: Sequence[str], spelled: Sequence[bool]) -> None:
    """Raises `ValueError` if a model cannot spell a target phrase of a dictionary."""
    refused = [text for text, known in zip(targets, spelled, strict=True) if not known]
    if refused:
        raise ValueError(
            "`dictionary` must have target phrases of characters and words of the "
            f"target vocabulary; received {len(refused)} others: "
            f"{', '.join(map(repr, refused[:5]))}. Remove or change them."
        )


def _words(text: str) -> list[_Word]:
    """Splits a text into words and single symbols, without spaces."""
    text = unicodedata.normalize("NFC", text.translate(_NORMALIZED))
    text = _ELISION.sub(rf"\g<0>{_SEPARATOR}", text)
    words, end = [], 0
    for part in _END.split(text):
        end += len(part)
        word = part.translate(_IGNORED).strip(_SEPARATOR).strip()
        if word:
            words.append(_Word(word, bool(_REST.match(text, end))))
    return words
