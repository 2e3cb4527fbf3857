"""Reading of text pairs: parallel files, files of two columns, or pairs in memory."""

import abc
import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeAlias

import numpy as np

from keras_transformer.text import Paths, path_list
from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.text_files import FilePath
from keras_transformer_runtime.text_rows import Row, RowIndex, TextRows

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


class FilePairs(Corpus):
    """Pairs of one file with two texts in a row, or of two files of lines.

    Args:
        files: one `TextRows` with rows of two texts; or two with rows of one text, of
            which row n of one translates row n of the other.
    """

    def __init__(self, *files: TextRows) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Pair]:
        rows = itertools.zip_longest(*self.files)
        for index, row in enumerate(rows):
            if None in row:
                longer = index + 1 + sum(1 for _ in rows)
                self._raise_unequal([index if each is None else longer for each in row])
            yield _pair(row)

    def count(self) -> int:
        return self._indexes[0].rows

    def checksum(self) -> int:
        names = [name for each in self.files for name in each.names]
        return checksum_of(*(index.checksum for index in self._indexes), *names)

    def reader(self) -> PairReader:
        sides = [each.reader() for each in self.files]

        def read(start: int, stop: int) -> list[Pair]:
            rows = zip(*(side.read(start, stop) for side in sides), strict=True)
            return list(map(_pair, rows))

        return read

    @functools.cached_property
    def _indexes(self) -> list[RowIndex]:
        indexes = [each.index for each in self.files]
        counts = [index.rows for index in indexes]
        if len(set(counts)) > 1:
            self._raise_unequal(counts)
        return indexes

    def _raise_unequal(self, counts: Sequence[int]) -> NoReturn:
        source, target = (
            f"{count:,} in `{each.path}`"
            for count, each in zip(counts, self.files, strict=True)
        )
        raise ValueError(
            "`source` and `target` must have the same number of lines; received "
            f"{source} and {target}. Line n of one must translate line n of the other."
        )


def _pair(row: Sequence[Row]) -> Pair:
    """Returns the two texts of a row of one or two files."""
    source, target = itertools.chain.from_iterable(row)
    return source, target


def open_corpora(
    source: Paths | None,
    target: Paths | Sequence[FilePath | None] | None,
    pairs: Iterable[Pair] | None = None,
    columns: Sequence[str] | None = None,
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
    return [*open_files(source, target, columns)]


def open_files(
    source: Paths,
    target: Paths | Sequence[FilePath | None] | None,
    columns: Sequence[str] | None = None,
) -> list[FilePairs]:
    """Opens one corpus for each file or for each pair of files."""
    sources = path_list(source)
    if not sources:
        raise ValueError(
            "`source` must contain at least one path; received an empty list. Check "
            "how the list is created."
        )
    if isinstance(target, str | os.PathLike):
        target = [target]
    targets = [None] * len(sources) if target is None else [*target]
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must contain equally many paths; received "
            f"{len(sources)} and {len(targets)} paths. Pass one target file for each "
            "source file."
        )
    return [
        FilePairs(TextRows.of(file, columns, 2))
        if other is None
        else FilePairs(TextRows.of_lines(file), TextRows.of_lines(other))
        for file, other in zip(sources, targets, strict=True)
    ]


def read_pairs(
    source: Paths | None = None,
    target: Paths | Sequence[FilePath | None] | None = None,
    pairs: Iterable[Pair] | None = None,
    columns: Sequence[str] | None = None,
) -> list[Pair]:
    """Reads the (source, target) texts of files, or those of `pairs`.

    Args:
        source: one path or several paths of files, plain or gzip (`.gz`), with one
            sentence per line. Without `target`: files with sources and targets, whose
            ending is their form: `.csv`, `.jsonl` or `.ndjson`; others have a tab
            between source and target.
        target: as many paths as `source`; line n translates line n of the source.
            `None` in place of a path: the file of `source` has sources and targets.
        pairs: source and target texts, instead of files.
        columns: names of the columns of source and target, `a.b` for the name `b` in
            the object `a` of a JSONL file. A TSV file (`.tsv`) has a header if they are
            given. `None`: CSV and JSONL files must have two columns.

    Returns:
        A list of (source, target) tuples.

    Raises:
        ValueError: if both or neither of `source` and `pairs` are given, or if files
            are empty, not UTF-8, not parallel, or do not have the columns.

    Example:

    >>> from keras_transformer.dataset import read_pairs
    >>> read_pairs(pairs=[("a cat", "un chat")])
    [('a cat', 'un chat')]
    """
    corpora = open_corpora(source, target, pairs, columns)
    return list(itertools.chain.from_iterable(corpora))
