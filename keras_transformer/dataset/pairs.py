"""Reads sentence pairs: parallel files, two-column files, or pairs in memory."""

import abc
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from keras_transformer.dataset.line_files import LineIndex, LineReader
from keras_transformer.text import Paths, path_list, read_lines

Pair = tuple[str, str]
ReadPairs = Callable[[int, int], list[Pair]]


class Corpus(Iterable[Pair]):
    """Pairs of one file, of two parallel files, or in memory."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Pair]:
        """Iterates over all pairs in order."""

    @abc.abstractmethod
    def count(self) -> int:
        """Returns the number of pairs; files are read for it, but only once."""

    @abc.abstractmethod
    def reader(self) -> ReadPairs:
        """Returns a function from `(start, stop)` to pairs, fastest called in order."""


class ListedPairs(Corpus):
    """Pairs in memory."""

    def __init__(self, pairs: Iterable[Pair]):
        self._pairs = list(pairs)
        for number, pair in enumerate(self._pairs):
            is_pair = isinstance(pair, tuple | list) and len(pair) == 2
            if not (is_pair and all(isinstance(text, str) for text in pair)):
                raise ValueError(
                    "`pairs` must hold (source, target) tuples of two strings; "
                    f"received `pairs[{number}]={pair!r}`."
                )
            try:
                "".join(pair).encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    "`pairs` must hold text that UTF-8 can encode; received "
                    f"`pairs[{number}]={pair!r}`: {error.reason}."
                ) from error
        if not self._pairs:
            raise ValueError("`pairs` must hold at least one pair; received none.")

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def count(self) -> int:
        return len(self._pairs)

    def reader(self) -> ReadPairs:
        return lambda start, stop: self._pairs[start:stop]


class ColumnFile(Corpus):
    """Pairs of a file with a source, a tab and a target on each line."""

    def __init__(self, path: os.PathLike):
        self._path = path

    def __iter__(self) -> Iterator[Pair]:
        return itertools.starmap(self._split, enumerate(read_lines(self._path)))

    def count(self) -> int:
        return self._index.lines

    def reader(self) -> ReadPairs:
        lines = LineReader(self._path, self._index)

        def read(start: int, stop: int) -> list[Pair]:
            return list(map(self._split, range(start, stop), lines.read(start, stop)))

        return read

    @functools.cached_property
    def _index(self) -> LineIndex:
        for _ in self:  # Better to find a line without two columns now than later.
            pass
        return LineIndex.of(self._path)

    def _split(self, number: int, line: str) -> Pair:
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                "`source` without `target` must have two columns separated by a tab; "
                f"line {number + 1} of `{self._path}` has {len(columns)}. Mend the "
                "line, or pass the translations as `target`."
            )
        return columns[0], columns[1]


class AlignedFiles(Corpus):
    """Pairs of two files that are line-by-line translations of each other."""

    def __init__(self, source: os.PathLike, target: os.PathLike):
        self._paths = source, target

    def __iter__(self) -> Iterator[Pair]:
        rows = itertools.zip_longest(*map(read_lines, self._paths))
        for number, (source, target) in enumerate(rows):
            if source is None or target is None:
                more = number + 1 + sum(1 for _ in rows)
                self._refuse((number, more) if source is None else (more, number))
            yield source, target

    def count(self) -> int:
        return self._indexes[0].lines

    def reader(self) -> ReadPairs:
        sides = [
            LineReader(*side) for side in zip(self._paths, self._indexes, strict=True)
        ]

        def read(start: int, stop: int) -> list[Pair]:
            return list(zip(*(side.read(start, stop) for side in sides), strict=True))

        return read

    @functools.cached_property
    def _indexes(self) -> list[LineIndex]:
        indexes = list(map(LineIndex.of, self._paths))
        if indexes[0].lines != indexes[1].lines:
            self._refuse((indexes[0].lines, indexes[1].lines))
        return indexes

    def _refuse(self, lines: tuple[int, int]) -> None:
        raise ValueError(
            "`source` and `target` must have the same number of lines; received "
            f"{lines[0]:,} in `{self._paths[0]}` and {lines[1]:,} in "
            f"`{self._paths[1]}`. Line n of one must translate line n of the other."
        )


def open_corpora(
    source: Paths | None,
    target: Paths | None,
    pairs: Iterable[Pair] | None = None,
) -> list[Corpus]:
    """Opens one corpus for each file or pair of files, or for `pairs`."""
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
            "`source` must name a file at least; received none. Check what the list "
            "was made of."
        )
    if target is None:
        return [ColumnFile(path) for path in sources]
    targets = path_list(target)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must be equally many files; received "
            f"{len(sources)} and {len(targets)} paths. Pair each source file with its "
            "target file."
        )
    return [AlignedFiles(*files) for files in zip(sources, targets, strict=True)]


def read_pairs(
    source: Paths | None = None,
    target: Paths | None = None,
    pairs: Iterable[Pair] | None = None,
) -> list[Pair]:
    """Reads the (source, target) texts of files or of `pairs`, whichever is given."""
    return list(itertools.chain.from_iterable(open_corpora(source, target, pairs)))
