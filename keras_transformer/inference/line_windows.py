"""Lines of text to translate, window by window: of a file, or as they come."""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.text import LineIndex, LineReader, decode_line

_READ = 1 << 16  # Bytes; what a pipe holds at most.


@dataclasses.dataclass(frozen=True)
class Window:
    """Lines that follow each other.

    Attributes:
        start: Number of the first, counted from 0.
        lines: The texts.
        lengths: Tokens of each, the end token included, int `(lines,)`; 1 for a line
            without words.
        too_long: Whether they are too many for the model, boolean `(lines,)`.
    """

    start: int
    lines: list[str]
    lengths: np.ndarray
    too_long: np.ndarray


class Side:
    """What a model takes on one side.

    Args:
        model: a `Seq2Seq` with tokenizers.
        name: `"source"` or `"target"`.

    Attributes:
        limit: `max_source_length` or `max_target_length`.

    Raises:
        ValueError: if the model has no tokenizers.
    """

    def __init__(self, model: Any, name: str = "source"):
        self._name = name
        self._tokenizer = getattr(model, f"{name}_tokenizer")
        self.limit: int | None = getattr(model, f"max_{name}_length")
        if self._tokenizer is None:
            raise ValueError(
                "`model` must have tokenizers to translate texts; received a model "
                f"without `{name}_tokenizer`. Give it tokenizers when you build it."
            )

    def window(self, start: int, lines: list[str]) -> Window:
        """Measures lines."""
        lengths = self._tokenizer.tokenize(lines, add_end=True).row_lengths().numpy()
        lengths = np.where([not line.strip() for line in lines], 1, lengths)
        return Window(start, lines, lengths, lengths > (self.limit or np.inf))

    def refuse_long_lines(self, window: Window, path: Any) -> None:
        """Raises an error if there is a line that is too long."""
        for place in np.flatnonzero(window.too_long):
            raise ValueError(
                f"`{self._name}` must have at most `max_{self._name}_length="
                f"{self.limit}` tokens a line; received {window.lengths[place]} tokens "
                f"in line {window.start + place + 1} of `{path}`. Shorten or split it, "
                'or go on without it: `too_long="empty"`.'
            )


class FileLines:
    """The lines of a file, which is read once before, to count and check them.

    Args:
        path: The file, plain or gzip (`.gz`).
        side: What the model takes.

    Attributes:
        lines: How many there are.

    Raises:
        ValueError: if the file is empty, compressed and damaged, or not UTF-8.
    """

    def __init__(self, path: str | os.PathLike, side: Side):
        self.path = path
        self.side = side
        self._index = LineIndex.of(path)
        self.lines = self._index.lines

    def digest(self) -> str:
        """Tells one content from another."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    def windows(self, start: int, size: int) -> Iterator[Window]:
        """The lines from `start` on, so many at a time."""
        reader = LineReader(self.path, self._index)
        for first in range(start, self.lines, size):
            lines = reader.read(first, min(first + size, self.lines))
            yield self.side.window(first, lines)

    def refuse_long_lines(self, start: int, size: int) -> None:
        """Raises an error if a line from `start` on is too long for the model."""
        for window in self.windows(start, size) if self.side.limit else ():
            self.side.refuse_long_lines(window, self.path)


class ArrivingLines:
    """The lines of a pipe, or those that a person types.

    Args:
        file: Where they come from: a buffered binary file, with `read1`.
        name: What it is called in errors.
        side: What the model takes.
        refuses: Whether a line that is too long is an error.
    """

    def __init__(self, file: Any, name: str, side: Side, refuses: bool):
        self._file = file
        self.path = name
        self.side = side
        self.lines = None  # nobody knows
        self._refuses = refuses

    def windows(self, start: int, size: int) -> Iterator[Window]:
        """Those that have come, at least one and at most so many at a time."""
        for lines in self._arrived(size):
            numbers = range(start + 1, start + len(lines) + 1)
            texts = [
                decode_line(line, self.path, number)
                for number, line in zip(numbers, lines, strict=True)
            ]
            window = self.side.window(start, texts)
            if self._refuses:
                self.side.refuse_long_lines(window, self.path)
            yield window
            start += len(lines)

    def _arrived(self, most: int) -> Iterator[list[bytes]]:
        rest = b""
        while data := self._file.read1(_READ):
            *lines, rest = (rest + data).split(b"\n")
            for first in range(0, len(lines), most):
                yield lines[first : first + most]
        if rest:
            yield [rest]
