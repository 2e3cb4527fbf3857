"""Validation and test texts that are held out from the training text."""

import contextlib
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from keras_transformer.dataset.running_text import text_documents, text_pieces
from keras_transformer.dataset.text_pairs import Pair
from keras_transformer_runtime.files import written_whole

MOST_PAIRS = 1000  # held out if no fraction is given
MOST_CHARACTERS = 500_000  # the same of running text
MOST_OF_TEXT = 0.1
SMALL_DOCUMENTS = ("line", "paragraph")  # of which whole ones are held out


class ParallelText(NamedTuple):
    """The sentences of a text, and the translation of each."""

    sources: list[str]
    references: list[str]


class TextFiles(NamedTuple):
    """The files of the texts of a run."""

    train: list[str]  # source and target, or one file; or files of running text
    valid: list[str]
    test: list[str] | None


def default_fraction(pairs: int) -> float:
    """Returns the fraction of a training text that is held out for validation."""
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
    """
    shares = _shares(valid, test)
    names = ("train", *shares)
    files = {
        name: [str(folder / f"{name}.{side}") for side in ("source", "target")]
        for name in names
    }
    if not all(pathlib.Path(path).exists() for name in names for path in files[name]):
        folder.mkdir(parents=True, exist_ok=True)
        _write(pairs, shares, files)
    return _text_files(files, valid, test)


def _shares(
    valid: list[str] | float, test: list[str] | float | None
) -> dict[str, float]:
    """Returns the fractions that are held out, by the name of the part."""
    return {
        name: share
        for name, share in {"valid": valid, "test": test}.items()
        if isinstance(share, int | float)
    }


def _text_files(
    held_out: dict[str, list[str]],
    valid: list[str] | float,
    test: list[str] | float | None,
) -> TextFiles:
    """Returns the files of the parts that are held out, and those that are given."""
    return TextFiles(
        held_out["train"],
        held_out["valid"] if isinstance(valid, int | float) else valid,
        held_out["test"] if isinstance(test, int | float) else test,
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
        if not all(counts.values()):
            raise _no_text(f"{sum(counts.values())} pairs", shares)


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


# Running text.


def default_text_fraction(characters: int) -> float:
    """Returns the fraction of a running text that is held out for validation."""
    share = min(MOST_OF_TEXT, MOST_CHARACTERS / max(characters, 1))
    return round(share, 4) or share


def hold_out_text(
    files: list[str],
    documents: str,
    valid: list[str] | float,
    test: list[str] | float | None,
    folder: pathlib.Path,
    is_new: bool,
) -> TextFiles:
    """Writes the parts of a running text to files.

    If documents are lines or paragraphs, whole documents are held out, by a hash of
    their text; otherwise the end of the text, first for validation and then for the
    test. Existing files are kept, unless the run is new.
    """
    shares = _shares(valid, test)
    names = ("train", *shares)

    def found() -> dict[str, list[str]]:
        return {name: sorted(map(str, folder.glob(f"{name}-*.txt"))) for name in names}

    if is_new or not all(found().values()):
        folder.mkdir(parents=True, exist_ok=True)
        for path in itertools.chain(*found().values()):
            pathlib.Path(path).unlink()
        write = _write_documents if documents in SMALL_DOCUMENTS else _write_ends
        write(files, documents, shares, folder)
    return _text_files(found(), valid, test)


def _write_documents(
    files: list[str], documents: str, shares: dict[str, float], folder: pathlib.Path
) -> None:
    """Writes each document to the file of its part."""
    ending = "\n" if documents == "line" else "\n\n"
    names = ("train", *shares)
    counts = dict.fromkeys(names, 0)
    with contextlib.ExitStack() as stack:
        open_files = {
            name: stack.enter_context(written_whole(folder / f"{name}-001.txt"))
            for name in names
        }
        for text in text_documents(files, documents):
            name = _part(text, shares)
            counts[name] += 1
            open_files[name].write(f"{text.rstrip(chr(10))}{ending}".encode())
        if not all(counts.values()):
            raise _no_text(f"{sum(counts.values())} documents", shares)


def _write_ends(
    files: list[str], documents: str, shares: dict[str, float], folder: pathlib.Path
) -> None:
    """Splits the text at two characters at most, and keeps the limits of its files."""
    size = sum(len(piece or "") for piece in text_pieces(files, documents))
    ends, end = {}, size
    for name, share in reversed(shares.items()):
        ends[name] = end
        end -= round(share * size)
    ends["train"] = end
    parts = [(name, ends[name]) for name in ("train", *shares)]
    sizes = [b - a for (_, a), (_, b) in itertools.pairwise([("", 0), *parts])]
    if min(sizes) < 2:
        raise _no_text(f"{size} characters", shares)
    position = 0
    for number, path in enumerate(files, start=1):
        with contextlib.ExitStack() as stack:
            opened: dict[str, BinaryIO] = {}
            for piece in text_pieces(path, documents):
                while piece:
                    name, end = next(each for each in parts if position < each[1])
                    if name not in opened:
                        new = written_whole(folder / f"{name}-{number:03}.txt")
                        opened[name] = stack.enter_context(new)
                    taken = piece[: end - position]
                    opened[name].write(taken.encode())
                    position, piece = position + len(taken), piece[len(taken) :]


def _no_text(received: str, shares: dict[str, float]) -> ValueError:
    given = ", ".join(f"`{name}={share}`" for name, share in shares.items())
    return ValueError(
        "`train` must have enough text for each part after texts are held out; "
        f"received {received} and {given}. Give files, or another fraction."
    )
