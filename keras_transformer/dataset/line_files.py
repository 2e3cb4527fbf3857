"""Reads text files of any size, from any line on."""

import dataclasses
import itertools
import os
import weakref
from typing import Self

from keras_transformer.text import decode_line, numbered_lines, open_text

_STRIDE = 4096  # Lines from one known place to the next.


@dataclasses.dataclass(frozen=True)
class LineIndex:
    """An index of the lines of a text file.

    Attributes:
        lines: number of lines in the file.
        offsets: byte at which every 4096th line begins, in the uncompressed text.
    """

    lines: int
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, path: str | os.PathLike) -> Self:
        """Indexes a file, reading it once to check that it is valid UTF-8."""
        number, offset, offsets = 0, 0, [0]
        for number, line in numbered_lines(path):
            decode_line(line, path, number)
            offset += len(line)
            if number % _STRIDE == 0:
                offsets.append(offset)
        return cls(number, tuple(offsets))


class LineReader:
    """Reads lines of a file; fastest when called in order.

    Args:
        path: the file, plain or gzip (`.gz`).
        index: the index of its lines.
    """

    def __init__(self, path: str | os.PathLike, index: LineIndex):
        self._path = path
        self._index = index
        self._file = open_text(path)
        self._line = 0
        weakref.finalize(self, self._file.close)

    def read(self, start: int, stop: int) -> list[str]:
        """Returns the lines from `start` up to `stop`, exclusive, counted from 0.

        Raises:
            ValueError: if they are no longer there.
        """
        if start != self._line:
            known, skip = divmod(start, _STRIDE)
            self._file.seek(self._index.offsets[known])
            for _ in itertools.islice(self._file, skip):
                pass
        self._line = stop
        lines = list(itertools.islice(self._file, stop - start))
        if len(lines) < stop - start:
            raise ValueError(
                f"`{self._path}` must be a file that can be read again and stays as it "
                f"is; it had {self._index.lines} lines, and now has "
                f"{start + len(lines)}. Write what comes from a pipe to a file first."
            )
        return [
            decode_line(line, self._path, number)
            for number, line in enumerate(lines, start=start + 1)
        ]
