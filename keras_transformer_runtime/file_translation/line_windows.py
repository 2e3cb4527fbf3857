"""Lines of text to translate, in windows: from a file or a pipe."""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from keras_transformer_runtime.text_files import decode_line
from keras_transformer_runtime.text_rows import TextRows

_READ = 1 << 16  # bytes, the capacity of a pipe


@dataclasses.dataclass(frozen=True)
class LineWindow:
    """Consecutive lines."""

    start: int  # number of the first line, counted from 0
    lines: list[str]
    # int `(lines,)`, tokens of each line, the end token included; 0 without words, as
    # for a language token alone.
    lengths: np.ndarray
    too_long: np.ndarray  # bool `(lines,)`, for the model


class Measure(Protocol):
    """Counts the tokens of texts; 0 without words."""

    def __call__(self, texts: Sequence[str], side: str, first: int) -> Sequence[int]:
        """`first` is the number of the line of the first text, for error messages."""
        ...


@dataclasses.dataclass(frozen=True)
class TextSide:
    """The source side or the target side of a model: its tokenizer and its limit."""

    name: str  # "source" or "target"
    limit: int | None  # maximum number of tokens of a line
    measure: Measure

    def window(self, start: int, lines: list[str]) -> LineWindow:
        """Counts the tokens of lines."""
        lengths = np.array(self.measure(lines, self.name, start + 1), dtype="int64")
        lengths[[not line.strip() for line in lines]] = 0
        return LineWindow(start, lines, lengths, lengths > (self.limit or np.inf))

    def check_lengths(self, window: LineWindow, path: str | os.PathLike) -> None:
        """Raises a `ValueError` if a line is too long for the model."""
        for place in np.flatnonzero(window.too_long):
            raise ValueError(
                f"`{self.name}` must have at most `max_{self.name}_length="
                f"{self.limit}` tokens a line; received {window.lengths[place]} tokens "
                f"in line {window.start + place + 1} of `{path}`. Shorten or split it, "
                'or leave its translation empty with `too_long="empty"`.'
            )


class FileLines:
    """The lines of a file, which is read once before, to count and check them."""

    def __init__(self, path: str | os.PathLike, side: TextSide):
        self.path = path
        self.side = side
        self._rows = TextRows.of_lines(path)
        self.lines = self._rows.index.rows

    def digest(self) -> str:
        """Returns a digest of the content of the file."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    def windows(self, start: int, size: int) -> Iterator[LineWindow]:
        """Yields the lines from number `start` on, `size` at a time."""
        reader = self._rows.reader()
        for first in range(start, self.lines, size):
            rows = reader.read(first, min(first + size, self.lines))
            yield self.side.window(first, [line for (line,) in rows])

    def check_lengths(self, start: int, size: int) -> None:
        """Raises a `ValueError` if a line from number `start` on is too long."""
        for window in self.windows(start, size) if self.side.limit else ():
            self.side.check_lengths(window, self.path)


class PipeLines:
    """The lines of a pipe, a binary file with `read1`, or those typed in a terminal."""

    def __init__(self, file: Any, name: str, side: TextSide, check_lengths: bool):
        self._file = file
        self.path = name
        self.side = side
        self.lines = None  # unknown before the end
        self._check_lengths = check_lengths

    def windows(self, start: int, size: int) -> Iterator[LineWindow]:
        """Yields the lines that have arrived, at least one and at most `size`."""
        for lines in self._arrived(size):
            numbers = range(start + 1, start + len(lines) + 1)
            texts = [
                decode_line(line, self.path, number)
                for number, line in zip(numbers, lines, strict=True)
            ]
            window = self.side.window(start, texts)
            if self._check_lengths:
                self.side.check_lengths(window, self.path)
            yield window
            start += len(lines)

    def _arrived(self, size: int) -> Iterator[list[bytes]]:
        rest = bytearray()  # grows in place, so a long line takes linear time
        while data := self._file.read1(_READ):
            before = len(rest)
            rest += data
            end = rest.rfind(b"\n", before)
            if end < 0:
                continue
            lines = bytes(rest[:end]).split(b"\n")
            del rest[: end + 1]
            for first in range(0, len(lines), size):
                yield lines[first : first + size]
        if rest:
            yield [bytes(rest)]
