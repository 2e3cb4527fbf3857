"""Reads text files line by line: plain or gzip, UTF-8 checked."""

import codecs
import gzip
import itertools
import os
import pathlib
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, cast

Paths = str | os.PathLike | Sequence[str | os.PathLike]


def path_list(paths: Paths) -> list[pathlib.Path]:
    """Returns one path or several as a list."""
    if isinstance(paths, str | os.PathLike):
        return [pathlib.Path(paths)]
    return [pathlib.Path(path) for path in paths]


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    r"""Reads a UTF-8 text file, plain or gzip (`.gz`), line by line.

    Only the line ending (`\n` or `\r\n`) and a byte order mark are removed.

    Args:
        path: the file.

    Yields:
        The lines, one `str` each.

    Raises:
        ValueError: if the file is empty, or compressed and damaged, or a line is not
            valid UTF-8 or has a NUL character.
    """
    for number, line in numbered_lines(path):
        yield decode_line(line, path, number)


def numbered_lines(path: str | os.PathLike) -> Iterator[tuple[int, bytes]]:
    r"""Yields the lines of a plain or gzip file as bytes, with their line endings.

    Args:
        path: the file.

    Yields:
        The number of each line, counted from 1, and the line.

    Raises:
        ValueError: if the file is empty, or compressed and damaged.
    """
    number = 0
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"A `.gz` file must be whole; `{path}` is damaged after line {number}: "
            f"{error}."
        ) from error
    if not number:
        raise ValueError(f"A text file must hold lines; `{path}` is empty.")


def open_text(path: str | os.PathLike) -> IO[bytes]:
    """Opens a plain or gzip file for reading bytes."""
    path = pathlib.Path(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def decode_line(line: bytes, path: str | os.PathLike, number: int) -> str:
    """Decodes line `number` of a file, counted from 1; `ValueError` if not UTF-8."""
    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            f"A text file must be valid UTF-8; `{path}` begins like UTF-16. Convert "
            "the file with `iconv -f utf-16 -t utf-8`."
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
            f"A text file must hold no NUL characters; line {number} of `{path}` has "
            "one. Convert the file if it is UTF-16 (`iconv -f utf-16le -t utf-8`), or "
            "remove them with `tr -d '\\000'`."
        )
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def training_lines(files: Paths | None, lines: Iterable[str] | None) -> Iterator[str]:
    """Yields the lines of `files` or `lines`, whichever is given."""
    if (files is None) == (lines is None):
        raise ValueError(
            "Exactly one of `files` and `lines` must be given; received "
            f"`files={files!r}` and {'no' if lines is None else 'also'} `lines`."
        )
    if isinstance(lines, str):
        raise ValueError(
            "`lines` must be an iterable of strings, one a line; received the string "
            f"`lines={lines[:40]!r}`. Pass a path as `files`."
        )
    if files is None:
        return _not_blank(lines or ())
    return _not_blank(itertools.chain.from_iterable(map(read_lines, path_list(files))))


def _not_blank(lines: Iterable[str]) -> Iterator[str]:
    blank = True
    for line in lines:
        blank = blank and not line.strip()
        yield line
    if blank:
        raise ValueError(
            "The training text must hold words; received blank lines only. Check "
            "`files` or `lines`."
        )


def sample_lines(lines: Iterator[str], size: int, seed: int) -> list[str]:
    """Samples at most `size` lines uniformly, in one pass.

    References:
        - [Vitter, 1985](https://doi.org/10.1145/3147.3165), algorithm R
    """
    sample = list(itertools.islice(lines, size))
    choose = random.Random(int(seed)).randrange
    for number, line in enumerate(lines, start=size + 1):
        if (place := choose(number)) < size:
            sample[place] = line
    return sample
