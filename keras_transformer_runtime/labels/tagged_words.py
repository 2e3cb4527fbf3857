"""Words and their tags of CoNLL and JSONL files, and spans of tags.

A span is what consecutive tags such as `B-PER` and `I-PER` mark: a person, a phrase.
Its kind is the part of the tag behind the first hyphen.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.text_files import FilePath
from keras_transformer_runtime.text_rows import (
    Lines,
    flat_names,
    json_records,
    json_value,
    table_form,
)

_DOCUMENT = "-DOCSTART-"  # the word of a line between two documents
_EXAMPLE = '{"words": ["in", "Rome"], "tags": ["O", "B-LOC"]}'
_ALONE = "_"  # kind of a tag that is a prefix alone
_BIOES = {"L": "E", "U": "S"}  # the prefixes of BILOU
_TAG = re.compile("O|[BIESLU](-.+)?")
_NUMBER = re.compile("-?[0-9]+")
_NOT_A_WORD = re.compile("[0-9]+[-.][0-9]+\t")  # the id of several or no tokens


class Span(NamedTuple):
    """Consecutive words of one kind.

    Attributes:
        kind: str, such as `"PER"`; `"_"` if the tags are prefixes alone.
        start: int, place of the first word, from 0.
        end: int, place after the last word.
    """

    kind: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class TaggedWords:
    """Sentences of a file: their words, and a tag for each word.

    Attributes:
        path: path of the file.
        words: the words of each sentence.
        tags: the tags of each sentence.
        lines: number of the line where the first word of each sentence is.
        tag_names: names of all tags. The id of a tag is its place.
        scheme: how the tags mark spans; see `tag_scheme`.
    """

    path: FilePath
    words: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    tag_names: tuple[str, ...]
    scheme: str | None

    def __len__(self) -> int:
        return len(self.words)

    def subset(self, rows: Sequence[int]) -> "TaggedWords":
        """Returns some sentences, with the same tag names and scheme.

        Args:
            rows: places of the sentences, from 0.

        Returns:
            A `TaggedWords`.
        """
        return dataclasses.replace(
            self,
            words=tuple(self.words[row] for row in rows),
            tags=tuple(self.tags[row] for row in rows),
            lines=tuple(self.lines[row] for row in rows),
        )


def read_tagged_words(
    path: FilePath,
    columns: Sequence[str] | None = None,
    tag_names: Sequence[str] | None = None,
) -> TaggedWords:
    r"""Reads sentences of tagged words.

    A file that ends in `.jsonl` or `.ndjson` has an object with two lists in each line.
    Other files are CoNLL files: each line has a word and its tag in columns that are
    separated by tabs or else by spaces, and a blank line ends a sentence. Lines with
    the word `-DOCSTART-` are left out. In a `.conllu` file, comments, and words of
    several or no tokens are left out too.

    Args:
        path: path of the file, plain or gzip (`.gz`).
        columns: the columns of the words and of the tags. In a JSONL file, their names;
            default: `words` and `tags`. In a CoNLL file, their numbers from 1 on, or
            from -1 back; default: 1 and -1, the last column. In a `.conllu` file: 2 and
            4, the words and their universal parts of speech.
        tag_names: names of the tags, such as those of the training data. Default: the
            tags of the file, sorted.

    Returns:
        A `TaggedWords`.

    Raises:
        ValueError: if a line lacks a column, if a sentence has not one tag for each
            word, if `tag_names` lacks a tag, or if the file has no words.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.conll"
    >>> _ = path.write_text("She O\nsaw O\nNew B-LOC\nYork I-LOC\n", "utf-8")
    >>> train = read_tagged_words(path)
    >>> train.words, train.scheme
    ((('She', 'saw', 'New', 'York'),), 'IOB2')
    >>> tag_spans(train.tags[0])
    [Span(kind='LOC', start=2, end=4)]

    References:
        - Tjong Kim Sang, De Meulder, 2003, "Introduction to the CoNLL-2003 Shared
          Task".
    """
    if columns is not None and (isinstance(columns, str) or len(columns) != 2):
        raise ValueError(
            "`columns` must have the column of the words and that of the tags; "
            f"received `columns={columns!r}`. Pass two numbers of columns for a CoNLL "
            "file, and two names for a JSONL file."
        )
    read = _read_json if table_form(path) == "jsonl" else _read_conll
    sentences = [*read(path, columns)]
    if not sentences:
        raise ValueError(f"A file of tagged words must have words; `{path}` has none.")
    tags = tuple(sentence.tags for sentence in sentences)
    found = {tag for sentence in tags for tag in sentence}
    if tag_names is not None:
        _check_tags(path, sentences, tag_names)
    return TaggedWords(
        path=path,
        words=tuple(sentence.words for sentence in sentences),
        tags=tags,
        lines=tuple(sentence.lines[0] for sentence in sentences),
        tag_names=tuple(sorted(found) if tag_names is None else tag_names),
        scheme=tag_scheme(tags),
    )


class _Sentence(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...]  # of the words


def _check_tags(
    path: FilePath, sentences: Sequence[_Sentence], known: Sequence[str]
) -> None:
    for sentence in sentences:
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if tag not in known:
                raise ValueError(
                    f"A tag must be in the training data too; {tag!r} in line {line} "
                    f"of `{path}` is not one of {', '.join(map(repr, known)):.400}. "
                    "Fix the tag, or add examples of it to the training data."
                )


def _read_json(path: FilePath, columns: Sequence[str] | None) -> Iterator[_Sentence]:
    lines = Lines(path)
    for record in json_records(lines, _EXAMPLE):
        words, tags = (
            _json_list(record, name, lines) for name in columns or ("words", "tags")
        )
        if len(words) != len(tags):
            raise ValueError(
                f"Each word must have a tag; line {lines.number} of `{path}` has "
                f"{len(words)} words and {len(tags)} tags. Fix or remove the line."
            )
        if words:
            yield _Sentence(words, tags, (lines.number,) * len(words))


def _json_list(
    record: Mapping[str, object], name: str, lines: Lines
) -> tuple[str, ...]:
    values = json_value(record, name)
    for value in values if isinstance(values, list) else [None]:
        if not isinstance(value, str) or not value.strip():
            shown = "missing" if values is None else f"{json.dumps(values):.60}"
            raise ValueError(
                f"The column {name!r} must be a list of texts that are not empty; in "
                f"line {lines.number} of `{lines.path}`, it is {shown}, and the object "
                f"has {', '.join(flat_names(record))}. Fix or remove the line, or pass "
                "the names of the words and of the tags in `columns`."
            )
        check_unicode(value, os.fspath(lines.path), f"line {lines.number}")
    return tuple(values) if isinstance(values, list) else ()


def _read_conll(path: FilePath, columns: Sequence[str] | None) -> Iterator[_Sentence]:
    is_universal = os.fspath(path).lower().removesuffix(".gz").endswith(".conllu")
    columns = columns or (("2", "4") if is_universal else ("1", "-1"))
    lines = Lines(path)
    rows: list[tuple[str, str, int]] = []
    for cells in _conll_cells(lines, is_universal):
        if cells:
            word, tag = (cells[place] for place in _places(columns, len(cells), lines))
            rows.append((word, tag, lines.number))
        elif rows:
            yield _Sentence(*zip(*rows, strict=True))
            rows = []
    if rows:
        yield _Sentence(*zip(*rows, strict=True))


def _conll_cells(lines: Lines, is_universal: bool) -> Iterator[list[str]]:
    """Yields the columns of each word, and an empty list between sentences."""
    count = 0
    for line in lines:
        if is_universal and (line.startswith("#") or _NOT_A_WORD.match(line)):
            continue
        cells = line.split("\t") if "\t" in line else line.split(" ")
        cells = [cell.strip(" ") for cell in cells if cell.strip(" ")]
        if cells and cells[0] == _DOCUMENT:
            cells = []
        count = count or len(cells)
        if cells and len(cells) != count:
            raise ValueError(
                f"Each line of a CoNLL file must have the {count} columns of its first "
                f"line; line {lines.number} of `{lines.path}` has {len(cells)}. Fix "
                "the line, or separate the columns by tabs if a word contains spaces."
            )
        yield cells


def _places(columns: Sequence[str], count: int, lines: Lines) -> list[int]:
    """Returns the places of the columns of words and tags, from 0."""
    numbers = [int(column) if _NUMBER.fullmatch(column) else 0 for column in columns]
    places = [number - 1 if number > 0 else count + number for number in numbers]
    if 0 in numbers or not all(0 <= place < count for place in places):
        problem = f"received `columns={[*columns]}`"
    elif places[0] == places[1]:
        problem = f"the words and the tags have the same column {places[0] + 1}"
    else:
        return places
    raise ValueError(
        "A CoNLL file must have a column of words and another one of tags, and "
        f"`columns` their numbers from 1 on, or from -1 back; {problem}, and line "
        f"{lines.number} of `{lines.path}` has this number of columns: {count}. Fix "
        "the file or `columns`."
    )


def tag_scheme(sentences: Sequence[Sequence[str]]) -> str | None:
    """Tells how tags mark spans.

    Args:
        sentences: the tags of each sentence.

    Returns:
        `"IOB2"` (BIO): the first word of a span has `B-`, the others have `I-`.
        `"IOB1"`: all words have `I-`, but `B-` begins a span directly behind another
        one of its kind. `"BIOES"`: the last word has `E-`, a single word `S-`.
        `"BILOU"`: these are `L-` and `U-`. `None`: the tags are plain, such as parts of
        speech. Tags of IOB2 and IOB1 in one file are IOB2.

    Example:

    >>> tag_scheme([["O", "B-PER", "I-PER"]]), tag_scheme([["DET", "NOUN"]])
    ('IOB2', None)
    """
    tags = {tag for sentence in sentences for tag in sentence}
    prefixes = {tag[0] for tag in tags if tag != "O"}
    if not prefixes or not all(_TAG.fullmatch(tag) for tag in tags):
        return None
    if prefixes & {"L", "U"}:
        return None if prefixes & {"E", "S"} else "BILOU"
    if prefixes & {"E", "S"}:
        return "BIOES"
    return "IOB2" if any(map(_has_b_alone, sentences)) else "IOB1"


def _has_b_alone(tags: Sequence[str]) -> bool:
    """Returns whether `B-` begins a span that is not behind another one of its kind."""
    previous = Span("", 0, 0)
    for span in tag_spans(tags):
        is_behind = (span.kind, span.start) == (previous.kind, previous.end)
        if tags[span.start][0] == "B" and not is_behind:
            return True
        previous = span
    return False


def tag_spans(tags: Sequence[str]) -> list[Span]:
    """Finds the spans that the tags of a sentence mark, whatever their scheme.

    A span begins with `B-` or `S-`, with a tag behind `O`, `E-` or `S-`, and where the
    kind changes. It ends in front of `O` or of the next span. This is the definition of
    conlleval, and of seqeval's default mode. `L-` and `U-` are `E-` and `S-`.

    Args:
        tags: the tags of a sentence.

    Returns:
        list of `Span`, in order.

    Raises:
        ValueError: if a tag is plain.

    Example:

    >>> tag_spans(["B-PER", "I-PER", "O", "I-LOC"])
    [Span(kind='PER', start=0, end=2), Span(kind='LOC', start=3, end=4)]

    References:
        - Tjong Kim Sang, Buchholz, 2000, "Introduction to the CoNLL-2000 Shared Task:
          Chunking".
        - Nakayama, 2018, "seqeval: A Python framework for sequence labeling
          evaluation".
    """
    spans = []
    last, last_kind, start = "O", _ALONE, 0
    for place, tag in enumerate([*tags, "O"]):
        if not _TAG.fullmatch(tag):
            raise ValueError(
                "`tags` must be O, or begin with B, I, E, S, L or U and a hyphen; "
                f"received {tag!r}. Plain tags have no spans: compute scores of the "
                "tags."
            )
        prefix, kind = _BIOES.get(tag[0], tag[0]), tag[2:] or _ALONE
        begins = prefix in "BS" or last in "OES" or kind != last_kind
        if last != "O" and (begins or prefix == "O"):
            spans.append(Span(last_kind, start, place))
        if begins:
            start = place
        last, last_kind = prefix, kind
    return spans
