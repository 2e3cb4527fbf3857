"""Validation and test texts that are held out from the training text."""

import contextlib
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, TypeAlias

from keras_transformer.dataset.running_text import (
    has_rows,
    text_documents,
    text_pieces,
)
from keras_transformer.dataset.text_pairs import Pair
from keras_transformer.recipe.plan import Plan
from keras_transformer_runtime.files import read_json, write_json, written_whole
from keras_transformer_runtime.runs.corpora import (
    CorpusFiles,
    split_corpora,
    weights_of,
)
from keras_transformer_runtime.runs.folder import text_checksum
from keras_transformer_runtime.text_rows import table_form

Shares: TypeAlias = dict[str, float]  # fractions that are held out, by their part
Parts: TypeAlias = dict[str, list[CorpusFiles]]  # files that are written, by their part
# A name, and a line for each of the files of this name.
Item: TypeAlias = tuple[str, Sequence[str]]

MOST_PAIRS = 1000  # held out if no fraction is given
MOST_CHARACTERS = 500_000  # the same of running text
MOST_OF_TEXT = 0.1
SMALL_DOCUMENTS = ("line", "paragraph")  # of which whole ones are held out
ORIGIN = "origin.json"  # beside the parts: what they were made from


class ParallelText(NamedTuple):
    """The sentences of a text, and the translation of each."""

    sources: list[str]
    references: list[str]


class TextFiles(NamedTuple):
    """The files of the texts of a run."""

    train: list[CorpusFiles]
    valid: list[CorpusFiles]
    test: list[CorpusFiles] | None


def describe_weights(corpora: Sequence[CorpusFiles]) -> str:
    """Returns the weights of corpora as the end of a phrase; "" without weights."""
    weights = weights_of(corpora)
    if weights is None:
        return ""
    return f", weights {':'.join(f'{weight:g}' for weight in weights)}"


def default_fraction(pairs: int) -> float:
    """Returns the fraction of a training text that is held out for validation."""
    return round(min(MOST_OF_TEXT, MOST_PAIRS / pairs), 4) or MOST_PAIRS / pairs


def given_corpora(plan: Plan, name: str) -> list[CorpusFiles]:
    """Returns the corpora of a text for which files are given."""
    has_running_text = plan["model"] == "causal" and plan["documents"] != "pairs"
    return split_corpora(name, plan[name], has_running_text)


def text_files(plan: Plan, hold_out: Callable[[Shares, bool], Parts]) -> TextFiles:
    """Returns the files of a run; `hold_out` writes those that fractions ask for.

    It keeps the files that it has written from the same texts and options, so that the
    processes of a run and a resumed run have the same data.
    """
    names = ("train", "valid", "test")
    shares = {name: plan[name] for name in names if isinstance(plan[name], float)}
    files: Parts = {}
    if shares:
        path = pathlib.Path(plan["output"], "data", ORIGIN)
        origin = _origin(plan, shares)
        is_kept = path.is_file() and read_json(path) == origin
        if not is_kept:
            path.unlink(missing_ok=True)
        files = hold_out(shares, is_kept)
        if not is_kept:
            write_json(path, origin)
    for name in names:
        if name not in files and plan[name] is not None:
            files[name] = given_corpora(plan, name)
    return TextFiles(files["train"], files["valid"], files.get("test"))


def _origin(plan: Plan, shares: Shares) -> dict[str, object]:
    """Returns what the parts of a training text depend on."""
    files = [file for each in given_corpora(plan, "train") for file in each.files]
    return {
        **{name: plan[name] for name in ("train", "columns", "documents")},
        "shares": shares,
        "checksums": [text_checksum(file) for file in files],
    }


def hold_out(
    corpora: Sequence[tuple[CorpusFiles, Iterable[Pair]]],
    columns: Sequence[str] | None,
    shares: Shares,
    folder: pathlib.Path,
    is_kept: bool,
) -> Parts:
    """Writes the parts of a training text to files.

    The part of a pair depends on a hash of its source, without regard to letter case
    and spaces. So no source is in two parts, and the parts do not depend on the order
    of the lines. Corpora with weights remain apart in the training text. With
    `is_kept`, existing files are kept.
    """
    given = [files for files, _ in corpora]
    weights = [files.weight for files in given]
    is_mixed = weights[0] is not None
    trained = [
        f"train-{n:03}" if is_mixed else "train" for n in range(1, len(given) + 1)
    ]
    # A text of a CSV or JSONL file may contain line breaks.
    forms = {table_form(file) for corpus in given for file in corpus.files}
    endings = ["jsonl"] if forms & {"csv", "jsonl"} else ["source", "target"]
    names = columns or ("source", "target")
    files = {
        name: [str(folder / f"{name}.{ending}") for ending in endings]
        for name in (*trained, *shares)
    }

    def items() -> Iterator[Item]:
        for (_, pairs), name in zip(corpora, trained, strict=True):
            for pair in pairs:
                part = _part(pair[0], shares)
                lines = pair if len(endings) == 2 else [_json_line(names, pair)]
                yield (name if part == "train" else part), lines

    paths = map(pathlib.Path, itertools.chain(*files.values()))
    if not (is_kept and all(path.exists() for path in paths)):
        folder.mkdir(parents=True, exist_ok=True)
        _write(items(), files, shares, "pairs")
    parts = {name: [CorpusFiles(files[name])] for name in shares}
    trained_files = dict(zip(trained, weights, strict=True))
    parts["train"] = [CorpusFiles(files[name], x) for name, x in trained_files.items()]
    return parts


def _json_line(names: Sequence[str], texts: Sequence[str]) -> str:
    """Returns a line of a JSONL file."""
    return json.dumps(dict(zip(names, texts, strict=True)), ensure_ascii=False)


def _write(
    items: Iterable[Item], files: Mapping[str, list[str]], shares: Shares, unit: str
) -> None:
    """Writes the lines of each item to the files of its name, if none stay empty."""
    counts = dict.fromkeys(files, 0)
    with contextlib.ExitStack() as stack:
        open_files = {
            name: [stack.enter_context(written_whole(path)) for path in paths]
            for name, paths in files.items()
        }
        for name, lines in items:
            counts[name] += 1
            for file, line in zip(open_files[name], lines, strict=True):
                file.write(f"{line}\n".encode())
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


def are_held_out_whole(path: str, documents: str, column: str | None) -> bool:
    """Returns whether a part has whole documents of a file, not the end of its text."""
    is_row = documents == "file" and has_rows(path, column)
    return documents in SMALL_DOCUMENTS or is_row


def hold_out_text(
    corpora: Sequence[CorpusFiles],
    column: str | None,
    documents: str,
    shares: Shares,
    folder: pathlib.Path,
    is_kept: bool,
) -> Parts:
    """Writes the parts of a running text to files.

    If documents are lines, paragraphs or rows, whole documents are held out, by a hash
    of their text; otherwise the end of the text, first for validation and then for the
    test. With weights, a part of each corpus is held out. With `is_kept`, existing
    files are kept.
    """
    names = ("train", *shares)
    limits = [0, *itertools.accumulate(len(corpus.files) for corpus in corpora)]
    # The numbers of the files of each corpus, counted from 1.
    numbers = [range(a + 1, b + 1) for a, b in itertools.pairwise(limits)]

    def written(name: str, numbers: Iterable[int]) -> list[str]:
        paths = (folder.glob(f"{name}-{number:03}.*") for number in numbers)
        return [str(path) for found in paths for path in sorted(found)]

    every = range(1, limits[-1] + 1)
    if not (is_kept and all(written(name, every) for name in names)):
        folder.mkdir(parents=True, exist_ok=True)
        for path in itertools.chain(*(written(name, every) for name in names)):
            pathlib.Path(path).unlink()
        for corpus, (first, *_) in zip(corpora, numbers, strict=True):
            ends: list[str] = []
            whole: list[str] = []
            for path in corpus.files:
                is_whole = are_held_out_whole(path, documents, column)
                (whole if is_whole else ends).append(path)
            if whole:
                _write_documents(whole, column, documents, shares, folder, first)
            if ends:
                _write_ends(ends, column, documents, shares, folder, first)
    parts = {name: [CorpusFiles(written(name, every))] for name in shares}
    parts["train"] = [
        CorpusFiles(written("train", each), corpus.weight)
        for corpus, each in zip(corpora, numbers, strict=True)
    ]
    return parts


def _write_documents(
    paths: list[str],
    column: str | None,
    documents: str,
    shares: Shares,
    folder: pathlib.Path,
    number: int,
) -> None:
    """Writes each document to its part."""
    ending = "txt" if documents in SMALL_DOCUMENTS else "jsonl"
    files = {
        name: [str(folder / f"{name}-{number:03}.{ending}")]
        for name in ("train", *shares)
    }

    def items() -> Iterator[Item]:
        for text in text_documents(paths, documents, column):
            line = text.rstrip("\n") + ("\n" if documents == "paragraph" else "")
            if ending == "jsonl":
                line = _json_line([column or "text"], [text])
            yield _part(text, shares), [line]

    _write(items(), files, shares, "documents")


def _write_ends(
    files: list[str],
    column: str | None,
    documents: str,
    shares: Shares,
    folder: pathlib.Path,
    first: int,
) -> None:
    """Splits the text at two characters at most, and keeps the limits of its files."""
    size = sum(len(piece or "") for piece in text_pieces(files, documents, column))
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
    for number, path in enumerate(files, start=first):
        with contextlib.ExitStack() as stack:
            opened: dict[str, BinaryIO] = {}
            for piece in text_pieces(path, documents, column):
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
