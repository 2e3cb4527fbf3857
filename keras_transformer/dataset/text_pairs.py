"""Reading of text pairs: parallel files, two-column files, or pairs in memory."""

import abc
import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeAlias

import numpy as np

from keras_transformer.text import (
    LineIndex,
    LineReader,
    Paths,
    path_list,
    read_lines,
)
from keras_transformer_runtime.arguments import check_unicode

Pair: TypeAlias = tuple[str, str]
PairReader: TypeAlias = Callable[[int, int], list[Pair]]


def checksum_of(*values: object) -> int:
    """Returns the CRC-32 of arrays and of the texts of other values, in their order."""
    checksum = 0
    for value in values:
        if isinstance(value, np.ndarray):
            checksum = zlib.crc32(np.ascontiguousarray(value).data, checksum)
        else:
            checksum = zlib.crc32(f"{value}\n".encode(), checksum)
    return checksum


class Corpus(Iterable[Pair]):
    """Base class of the corpora: ordered pairs of source and target texts."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Pair]:
        """Iterates over all pairs in order."""

    @abc.abstractmethod
    def count(self) -> int:
        """Returns the number of pairs. The first call reads the files."""

    @abc.abstractmethod
    def checksum(self) -> int:
        """Returns a number that distinguishes the texts. The first call reads them."""

    @abc.abstractmethod
    def reader(self) -> PairReader:
        """Returns a function that reads the pairs `start` to `stop`, exclusive.

        Consecutive ranges are read fastest.
        """


class ListedPairs(Corpus):
    """Pairs in memory; raises `ValueError` unless each is two strings."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = list(pairs)
        for index, pair in enumerate(self._pairs):
            is_pair = isinstance(pair, tuple | list) and len(pair) == 2
            if not (is_pair and all(isinstance(text, str) for text in pair)):
                raise ValueError(
                    "`pairs` must contain (source, target) tuples of two strings; "
                    f"received `pairs[{index}]={pair!r}`."
                )
            for text in pair:
                check_unicode(text, "pairs", f"pair {index}")
        if not self._pairs:
            raise ValueError("`pairs` must contain at least one pair; received none.")

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def count(self) -> int:
        return len(self._pairs)

    def checksum(self) -> int:
        return checksum_of(*itertools.chain.from_iterable(self._pairs))

    def reader(self) -> PairReader:
        return lambda start, stop: self._pairs[start:stop]


class TwoColumnFile(Corpus):
    """Pairs of a file with a source, a tab and a target on each line."""

    def __init__(self, path: os.PathLike[str]) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Pair]:
        return itertools.starmap(self._split, enumerate(read_lines(self._path)))

    def count(self) -> int:
        return self._index.lines

    def checksum(self) -> int:
        return self._index.checksum

    def reader(self) -> PairReader:
        lines = LineReader(self._path, self._index)

        def read(start: int, stop: int) -> list[Pair]:
            return list(map(self._split, range(start, stop), lines.read(start, stop)))

        return read

    @functools.cached_property
    def _index(self) -> LineIndex:
        for _ in self:  # Reports a line without two columns before training starts.
            pass
        return LineIndex.of(self._path)

    def _split(self, index: int, line: str) -> Pair:
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                "A file with sources and targets must have two columns separated by a "
                f"tab; line {index + 1} of `{self._path}` has {len(columns)}. Fix the "
                "line, or pass two files, the sources and the targets."
            )
        return columns[0], columns[1]


class ParallelFiles(Corpus):
    """Pairs of two files: line n of one translates line n of the other."""

    def __init__(self, source: os.PathLike[str], target: os.PathLike[str]) -> None:
        self._paths = source, target

    def __iter__(self) -> Iterator[Pair]:
        rows = itertools.zip_longest(*map(read_lines, self._paths))
        for index, (source, target) in enumerate(rows):
            if source is None or target is None:
                longer = index + 1 + sum(1 for _ in rows)
                self._raise_unequal(*(index, longer)[:: 1 if source is None else -1])
            yield source, target

    def count(self) -> int:
        return self._indexes[0].lines

    def checksum(self) -> int:
        return checksum_of(*(index.checksum for index in self._indexes))

    def reader(self) -> PairReader:
        sides = [
            LineReader(path, index)
            for path, index in zip(self._paths, self._indexes, strict=True)
        ]

        def read(start: int, stop: int) -> list[Pair]:
            return list(zip(*(side.read(start, stop) for side in sides), strict=True))

        return read

    @functools.cached_property
    def _indexes(self) -> list[LineIndex]:
        indexes = list(map(LineIndex.of, self._paths))
        if indexes[0].lines != indexes[1].lines:
            self._raise_unequal(indexes[0].lines, indexes[1].lines)
        return indexes

    def _raise_unequal(self, source_lines: int, target_lines: int) -> NoReturn:
        raise ValueError(
            "`source` and `target` must have the same number of lines; received "
            f"{source_lines:,} in `{self._paths[0]}` and {target_lines:,} in "
            f"`{self._paths[1]}`. Line n of one must translate line n of the other."
        )


def open_corpora(
    source: Paths | None,
    target: Paths | None,
    pairs: Iterable[Pair] | None = None,
) -> list[Corpus]:
    """Opens one corpus for each file, for each pair of files, or for `pairs`."""
    if (source is None) == (pairs is None) or (source is None and target is not None):
        raise ValueError(
            "Either `source` (with `target`, unless it has two columns) or `pairs` "
            f"must be given; received `source={source!r}`, `target={target!r}` and "
            f"{'no' if pairs is None else 'also'} `pairs`."
        )
    if source is None:
        return [ListedPairs(pairs if pairs is not None else ())]
    sources = path_list(source)
    if not sources:
        raise ValueError(
            "`source` must contain at least one path; received an empty list. Check "
            "how the list is created."
        )
    if target is None:
        return [TwoColumnFile(path) for path in sources]
    targets = path_list(target)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must contain equally many paths; received "
            f"{len(sources)} and {len(targets)} paths. Pass one target file for each "
            "source file."
        )
    return [ParallelFiles(*files) for files in zip(sources, targets, strict=True)]


def read_pairs(
    source: Paths | None = None,
    target: Paths | None = None,
    pairs: Iterable[Pair] | None = None,
) -> list[Pair]:
    """Reads the (source, target) texts of files, or those of `pairs`.

    Args:
        source: one path or several paths of files, plain or gzip (`.gz`), with one
            sentence per line. Without `target`: files with two columns, source and
            target, separated by a tab.
        target: as many paths as `source`; line n translates line n of the source.
        pairs: source and target texts, instead of files.

    Returns:
        A list of (source, target) tuples.

    Raises:
        ValueError: if both or neither of `source` and `pairs` are given, or if files
            are empty, not UTF-8 or not parallel.

    Example:

    >>> from keras_transformer.dataset import read_pairs
    >>> read_pairs(pairs=[("a cat", "un chat")])
    [('a cat', 'un chat')]
    """
    return list(itertools.chain.from_iterable(open_corpora(source, target, pairs)))
