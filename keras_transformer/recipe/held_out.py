"""Validation and test texts that are held out from the training text."""

import contextlib
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, NamedTuple, TypeAlias

from keras_transformer.dataset.running_text import text_documents, text_pieces
from keras_transformer.dataset.text_pairs import Pair
from keras_transformer.recipe.plan import Plan
from keras_transformer_runtime.files import written_whole

Shares: TypeAlias = dict[str, float]  # fractions that are held out, by their part
Parts: TypeAlias = dict[str, list[str]]  # files that are written, by their part

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


def text_files(plan: Plan, hold_out: Callable[[Shares], Parts]) -> TextFiles:
    """Returns the files of a run; `hold_out` writes those that fractions ask for."""
    files = {name: plan[name] for name in ("train", "valid", "test")}
    shares = {name: x for name, x in files.items() if isinstance(x, float)}
    return TextFiles(**{**files, **(hold_out(shares) if shares else {})})


def hold_out(pairs: Iterable[Pair], shares: Shares, folder: pathlib.Path) -> Parts:
    """Writes the parts of a training text to files.

    The part of a pair depends on a hash of its source, without regard to letter case
    and spaces. So no source is in two parts, and the parts do not depend on the order
    of the lines. Existing files are kept, so that a resumed run has the same data.
    """
    parts = {
        name: [str(folder / f"{name}.{side}") for side in ("source", "target")]
        for name in ("train", *shares)
    }
    if not all(
        pathlib.Path(path).exists() for path in itertools.chain(*parts.values())
    ):
        folder.mkdir(parents=True, exist_ok=True)
        lines = ((f"{source}\n", f"{target}\n") for source, target in pairs)
        _write(lines, parts, shares, "pairs")
    return parts


def _write(
    items: Iterable[Sequence[str]], parts: Parts, shares: Shares, unit: str
) -> None:
    """Writes each item, a text for each file, to its part, if no part stays empty."""
    counts = dict.fromkeys(parts, 0)
    with contextlib.ExitStack() as stack:
        open_files = {
            name: [stack.enter_context(written_whole(path)) for path in paths]
            for name, paths in parts.items()
        }
        for texts in items:
            name = _part(texts[0], shares)
            counts[name] += 1
            for file, text in zip(open_files[name], texts, strict=True):
                file.write(text.encode())
        if not all(counts.values()):
            raise _no_text(f"{sum(counts.values())} {unit}", shares)


def _part(source: str, shares: Shares) -> str:
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
    files: list[str], documents: str, shares: Shares, folder: pathlib.Path, is_new: bool
) -> Parts:
    """Writes the parts of a running text to files.

    If documents are lines or paragraphs, whole documents are held out, by a hash of
    their text; otherwise the end of the text, first for validation and then for the
    test. Existing files are kept, unless the run is new.
    """
    names = ("train", *shares)

    def found() -> Parts:
        return {name: sorted(map(str, folder.glob(f"{name}-*.txt"))) for name in names}

    if is_new or not all(found().values()):
        folder.mkdir(parents=True, exist_ok=True)
        for path in itertools.chain(*found().values()):
            pathlib.Path(path).unlink()
        if documents in SMALL_DOCUMENTS:
            parts = {name: [str(folder / f"{name}-001.txt")] for name in names}
            ending = "\n" if documents == "line" else "\n\n"
            texts = text_documents(files, documents)
            items = ((text.rstrip("\n") + ending,) for text in texts)
            _write(items, parts, shares, "documents")
        else:
            _write_ends(files, documents, shares, folder)
    return found()


def _write_ends(
    files: list[str], documents: str, shares: Shares, folder: pathlib.Path
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


def _no_text(received: str, shares: Shares) -> ValueError:
    given = ", ".join(f"`{name}={share}`" for name, share in shares.items())
    return ValueError(
        "`train` must have enough text for each part after texts are held out; "
        f"received {received} and {given}. Give files, or another fraction."
    )
