r"""Text files in UTF-8, plain or gzip: reading, checking and indexing their lines.

A line ends with `\n` or `\r\n`, and with nothing else. Other separators of Unicode,
such as U+0085 and U+2028, are characters of a line. A file with a `\r` elsewhere is an
error, since programs disagree on whether it ends a line.
"""

import codecs
import dataclasses
import gzip
import io
import itertools
import os
import pathlib
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Self, TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = FilePath | Sequence[FilePath]

_STRIDE = 4096  # Lines between two indexed offsets.


def path_list(paths: Paths) -> list[pathlib.Path]:
    """Returns one path or several paths as a list.

    Args:
        paths: a path, or an iterable of paths.

    Returns:
        list of `pathlib.Path`.
    """
    if isinstance(paths, str | os.PathLike):
        return [pathlib.Path(paths)]
    return [pathlib.Path(path) for path in paths]


# Reading from the first line on.


def read_lines(path: FilePath) -> Iterator[str]:
    r"""Reads a UTF-8 text file, plain or gzip (`.gz`), line by line.

    Only the line ending (`\n` or `\r\n`) and a byte order mark are removed.

    Args:
        path: path of the file.

    Yields:
        The lines as `str`.

    Raises:
        ValueError: if the file is empty, if a compressed file is damaged, or if a line
            is not valid UTF-8 or contains a NUL character or a carriage return.
    """
    for number, line in numbered_lines(path):
        yield decode_line(line, path, number)


def numbered_lines(path: FilePath) -> Iterator[tuple[int, bytes]]:
    """Reads a plain or gzip file line by line, without decoding the lines.

    Args:
        path: path of the file.

    Yields:
        Tuples of the line number, counted from 1, and the line with its line ending.

    Raises:
        ValueError: if the file is empty, or if a compressed file is damaged.
    """
    number = 0
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"A `.gz` file must be complete; `{path}` is damaged after line {number}: "
            f"{error}. Copy or compress the file again."
        ) from error
    if not number:
        raise ValueError(f"A text file must contain lines; `{path}` is empty.")


def open_text(path: FilePath) -> io.BufferedIOBase:
    """Opens a file for reading bytes.

    Args:
        path: path of the file, plain or gzip (`.gz`).

    Returns:
        The open binary file; its bytes are not compressed.
    """
    path = pathlib.Path(path)
    if path.suffix == ".gz":
        return gzip.open(path)
    return path.open("rb")


def decode_line(line: bytes, path: FilePath, number: int) -> str:
    """Decodes a line of a UTF-8 file and removes its line ending.

    Args:
        line: the line, with or without its line ending.
        path: path of the file, for error messages.
        number: line number, counted from 1.

    Returns:
        The text of the line.

    Raises:
        ValueError: if the line is not valid UTF-8, or contains a NUL character or a
            carriage return.
    """
    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            f"A text file must be valid UTF-8; `{path}` begins with a byte order mark "
            "of UTF-16. Convert the file with `iconv -f utf-16 -t utf-8`."
        )
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A text file must be valid UTF-8; line {number} of `{path}` is not "
            f"({error.reason}). Convert the file, for example with `iconv -f latin1 "
            "-t utf-8`, or remove the line."
        ) from error
    if "\0" in text:
        raise ValueError(
            f"A text file must not contain NUL characters; line {number} of `{path}` "
            "contains one. Convert the file if it is UTF-16 (`iconv -f utf-16le -t "
            "utf-8`), or remove the characters with `tr -d '\\000'`."
        )
    text = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
    if "\r" in text:
        raise ValueError(
            "A line of a text file must end with a line feed, or a carriage return and "
            f"a line feed; line {number} of `{path}` contains a carriage return alone. "
            "If it ends a line, convert the file with `tr '\\r' '\\n'`; otherwise "
            "remove it with `tr -d '\\r'`."
        )
    return text


# Reading from any line on.


@dataclasses.dataclass(frozen=True)
class LineIndex:
    """Byte offsets of the lines of a text file.

    Attributes:
        lines: number of lines in the file.
        offsets: byte offset of every 4096th line in the uncompressed text.
        checksum: CRC-32 of the uncompressed text.
    """

    lines: int
    offsets: tuple[int, ...]
    checksum: int

    @classmethod
    def of(cls, path: FilePath) -> Self:
        """Reads a whole file, checks that it is valid UTF-8, and indexes its lines.

        Args:
            path: path of the file, plain or gzip (`.gz`).

        Returns:
            The `LineIndex`.

        Raises:
            ValueError: if a line is not valid UTF-8.
        """
        number, offset, offsets, checksum = 0, 0, [0], 0
        for number, line in numbered_lines(path):
            decode_line(line, path, number)
            offset += len(line)
            checksum = zlib.crc32(line, checksum)
            if number % _STRIDE == 0:
                offsets.append(offset)
        return cls(number, tuple(offsets), checksum)


class LineReader:
    """Reads ranges of lines of a file. Consecutive ranges are read fastest.

    Args:
        path: path of the file, plain or gzip (`.gz`).
        index: index of its lines.
    """

    def __init__(self, path: FilePath, index: LineIndex):
        self._path = path
        self._index = index
        self._file = open_text(path)
        self._line = 0
        weakref.finalize(self, self._file.close)

    def read(self, start: int, stop: int) -> list[str]:
        """Returns the lines `start` to `stop`, exclusive, counted from 0.

        Raises:
            ValueError: if the file has fewer lines than when it was indexed.
        """
        if start != self._line:
            block, skip = divmod(start, _STRIDE)
            self._file.seek(self._index.offsets[block])
            for _ in itertools.islice(self._file, skip):
                pass
        self._line = stop
        lines = list(itertools.islice(self._file, stop - start))
        if len(lines) < stop - start:
            raise ValueError(
                f"`{self._path}` must be a file that can be read again and does not "
                f"change; it had {self._index.lines} lines and now has "
                f"{start + len(lines)}. Write the output of a pipe to a file first."
            )
        return [
            decode_line(line, self._path, number)
            for number, line in enumerate(lines, start=start + 1)
        ]
