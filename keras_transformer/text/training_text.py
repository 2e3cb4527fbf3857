"""The text that a tokenizer is trained on: its lines, and a sample of them."""

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.text_files import Paths, path_list, read_lines

Item = TypeVar("Item")


def training_lines(files: Paths | None, lines: Iterable[str] | None) -> Iterator[str]:
    """Returns the lines of either `files` or `lines`.

    Raises `ValueError` if both or neither are given, or, at the end of the iteration,
    if all lines are blank.
    """
    if (files is None) == (lines is None):
        raise ValueError(
            "Exactly one of `files` and `lines` must be given; received "
            f"`files={files!r}` and {'no' if lines is None else 'also'} `lines`."
        )
    if isinstance(lines, str):
        raise ValueError(
            "`lines` must be an iterable of strings, one per line; received the string "
            f"`lines={lines[:40]!r}`. Pass a path as `files`."
        )
    if files is None:
        return _check_not_blank(lines or ())
    paths = path_list(files)
    return _check_not_blank(itertools.chain.from_iterable(map(read_lines, paths)))


def _check_not_blank(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines; raises `ValueError` at the end if all of them are blank."""
    all_blank = True
    for number, line in enumerate(lines, start=1):
        if isinstance(line, str):
            check_unicode(line, "lines", f"line {number}")
        all_blank = all_blank and not line.strip()
        yield line
    if all_blank:
        raise ValueError(
            "The training text must contain words; received only blank lines. Check "
            "`files` or `lines`."
        )


def sample_items(items: Iterator[Item], size: int, seed: int) -> list[Item]:
    """Samples at most `size` items, such as lines, uniformly at random, in one pass.

    References:
        - [Vitter, 1985](https://doi.org/10.1145/3147.3165), algorithm R
    """
    sample = list(itertools.islice(items, size))
    random_index = random.Random(int(seed)).randrange
    for number, item in enumerate(items, start=size + 1):
        if (index := random_index(number)) < size:
            sample[index] = item
    return sample
