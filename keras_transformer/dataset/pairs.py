"""Reads sentence pairs: parallel files, two-column files, or pairs in memory."""

import os
from collections.abc import Iterable, Iterator

from keras_transformer.text import Paths, path_list, read_lines


def read_pairs(
    source: Paths | None = None,
    target: Paths | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
) -> list[tuple[str, str]]:
    """The (source, target) texts of files or of `pairs`, whichever is given."""
    if (source is None) == (pairs is None) or (source is None and target is not None):
        raise ValueError(
            "Either `source` (with `target`, unless it has two columns) or `pairs` "
            f"must be given; received `source={source!r}`, `target={target!r}` and "
            f"{'no' if pairs is None else 'also'} `pairs`."
        )
    if source is None:
        return _check_pairs(list(pairs or ()))
    sources = path_list(source)
    if target is None:
        return [pair for path in sources for pair in _read_columns(path)]
    targets = path_list(target)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must be equally many files; received "
            f"{len(sources)} and {len(targets)} paths. Pair each source file with its "
            "target file."
        )
    return [
        pair
        for files in zip(sources, targets, strict=True)
        for pair in _read_aligned(*files)
    ]


def _check_pairs(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    for number, pair in enumerate(pairs):
        if isinstance(pair, str) or [type(text) for text in pair] != [str, str]:
            raise ValueError(
                "`pairs` must hold (source, target) tuples of two strings; received "
                f"`pairs[{number}]={pair!r}`."
            )
    if not pairs:
        raise ValueError("`pairs` must hold at least one pair; received none.")
    return pairs


def _read_columns(path: os.PathLike) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                "`source` without `target` must have two columns separated by a tab; "
                f"line {number} of `{path}` has {len(columns)}. Mend the line, or pass "
                "the translations as `target`."
            )
        yield columns[0], columns[1]


def _read_aligned(
    source: os.PathLike, target: os.PathLike
) -> Iterator[tuple[str, str]]:
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must have the same number of lines; received "
            f"{len(sources):,} in `{source}` and {len(targets):,} in `{target}`. Line "
            "n of one must translate line n of the other."
        )
    return zip(sources, targets, strict=True)
