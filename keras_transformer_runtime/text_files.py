r"""Text files in UTF-8, plain or gzip: reading and checking their lines.

A line ends with `\n` or `\r\n`, and with nothing else. Other separators of Unicode,
such as U+0085 and U+2028, are characters of a line. A file with a `\r` elsewhere is an
error, since programs disagree on whether it ends a line.
"""

import codecs
import gzip
import io
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = FilePath | Sequence[FilePath]


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


def numbered_lines(
    path: FilePath, offset: int = 0, skipped: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Reads a plain or gzip file line by line, without decoding the lines.

    Args:
        path: path of the file.
        offset: number of bytes of the uncompressed text to skip.
        skipped: number of lines in these bytes.

    Yields:
        Tuples of the line number, counted from 1, and the line with its line ending.

    Raises:
        ValueError: if the file is empty, or if a compressed file is damaged.
    """
    number = skipped
    try:
        with open_text(path) as file:
            if offset:  # A pipe cannot be sought.
                file.seek(offset)
            for number, line in enumerate(file, start=skipped + 1):
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
