"""Validation and test texts that are held out from the training text."""

import contextlib
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from keras_transformer.dataset.text_pairs import Pair
from keras_transformer.files import written_whole

MOST_PAIRS = 1000  # held out if no fraction is given
MOST_OF_TEXT = 0.1


class ParallelText(NamedTuple):
    """A text and its translation.

    Attributes:
        sources: list of str, the sentences.
        references: list of str, the translation of each sentence.
    """

    sources: list[str]
    references: list[str]


class TextFiles(NamedTuple):
    """The files of the texts of a run.

    Attributes:
        train: list of paths, source and target of the training text, or one file.
        valid: the same of the validation text.
        test: the same of the test text; `None` without a test text.
    """

    train: list[str]
    valid: list[str]
    test: list[str] | None


def default_fraction(pairs: int) -> float:
    """Returns the fraction of a training text that is held out for validation.

    Args:
        pairs: number of pairs of the training text.
    """
    return round(min(MOST_OF_TEXT, MOST_PAIRS / pairs), 4) or MOST_PAIRS / pairs


def hold_out(
    pairs: Iterator[Pair],
    valid: list[str] | float,
    test: list[str] | float | None,
    folder: pathlib.Path,
) -> TextFiles:
    """Writes the parts of a training text to files.

    The part of a pair depends on a hash of its source, without regard to letter case
    and spaces. So no source is in two parts, and the parts do not depend on the order
    of the lines. Existing files are kept, so that a resumed run has the same data.

    Args:
        pairs: the training text.
        valid: files, or the fraction of the pairs for validation.
        test: files, or the fraction for the test, or `None`.
        folder: the folder for the files `train.source`, `train.target`, and so on.

    Returns:
        The `TextFiles`.

    Raises:
        ValueError: if a part is empty.
    """
    shares = {
        name: share
        for name, share in {"valid": valid, "test": test}.items()
        if isinstance(share, int | float)
    }
    names = ("train", *shares)
    files = {
        name: [str(folder / f"{name}.{side}") for side in ("source", "target")]
        for name in names
    }
    if not all(pathlib.Path(path).exists() for name in names for path in files[name]):
        folder.mkdir(parents=True, exist_ok=True)
        _write(pairs, shares, files)
    return TextFiles(
        files["train"],
        files["valid"] if isinstance(valid, int | float) else valid,
        files["test"] if isinstance(test, int | float) else test,
    )


def _write(
    pairs: Iterator[Pair], shares: dict[str, float], files: dict[str, list[str]]
) -> None:
    """Writes the files. Raises `ValueError`, and writes none, if a part is empty."""
    counts = dict.fromkeys(files, 0)
    with contextlib.ExitStack() as stack:
        open_files: dict[str, Sequence[BinaryIO]] = {
            name: [stack.enter_context(written_whole(path)) for path in paths]
            for name, paths in files.items()
        }
        for pair in pairs:
            name = _part(pair[0], shares)
            counts[name] += 1
            for file, text in zip(open_files[name], pair, strict=True):
                file.write(f"{text}\n".encode())
        if empty := [name for name, count in counts.items() if not count]:
            given = ", ".join(f"`{name}={share}`" for name, share in shares.items())
            raise ValueError(
                f"`{empty[0]}` must have at least one pair after texts are held out; "
                f"received {sum(counts.values())} pairs and {given}. Give files, or "
                "another fraction."
            )


def _part(source: str, shares: dict[str, float]) -> str:
    """Returns the name of the part of a source."""
    text = " ".join(source.split()).casefold()
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    position, end = int.from_bytes(digest) / 2**64, 0.0
    for name, share in shares.items():
        end += share
        if position < end:
            return name
    return "train"
