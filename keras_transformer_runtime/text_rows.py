"""Rows of texts of a file: its lines, or the rows of a TSV, CSV or JSONL file.

The ending of a file, in front of `.gz`, is its form: `.tsv`, `.csv`, `.jsonl` or
`.ndjson`. A file with another ending has lines of text, or a tab between two texts. A
row is read when it is needed, so a file may be larger than the memory.
"""

import csv
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn, Self, TypeAlias

from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.text_files import FilePath, decode_line, numbered_lines

Row: TypeAlias = tuple[str, ...]

_FORMS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_STRIDE = 4096  # rows between two places of an index
_DELIMITERS = ",;\t"  # of a CSV file: the first one that its header contains
_LONGEST_TEXT = 10**8  # characters of a CSV column, in place of 131,072
_NUMBERS = {1: "one column", 2: "two columns, source and target,"}


def table_form(path: FilePath) -> str | None:
    """Returns the form of a file with columns: `"tsv"`, `"csv"` or `"jsonl"`.

    Args:
        path: path of the file.

    Returns:
        The form, or `None` for a file with another ending.
    """
    name = os.fspath(path).lower().removesuffix(".gz")
    return _FORMS.get(pathlib.PurePath(name).suffix)


class Place(NamedTuple):
    """A place between two lines of a file."""

    offset: int  # bytes of the uncompressed text before it
    lines: int  # before it


_START = Place(0, 0)


class Header(NamedTuple):
    """The names of the columns of a CSV or TSV file, in its first line."""

    names: tuple[str, ...]
    place: Place  # after it
    delimiter: str


def read_header(path: FilePath) -> Header:
    """Reads the names of the columns of a CSV or TSV file.

    Args:
        path: path of the file. It is a TSV file if its ending is not `.csv`.

    Returns:
        A `Header`. The names are those of the file, without white space around them.

    Raises:
        ValueError: if the file has no text.
    """
    delimiter = "\t"
    if table_form(path) == "csv":
        first = next(filter(None, Lines(path)), "")
        delimiter = next((d for d in _DELIMITERS if d in first), ",")
        lines = Lines(path)
        names = next(_csv_records(lines, delimiter), [])
    else:
        lines = Lines(path)
        names = next(filter(None, lines), "").split(delimiter)
    names = [name.strip() for name in names]
    if not any(names):
        raise _no_rows(path)
    return Header(tuple(names), lines.place, delimiter)


class Lines(Iterator[str]):
    """The lines of a file from a place on, checked and decoded as they are read."""

    def __init__(self, path: FilePath, place: Place = _START) -> None:
        self.path = path
        self.offset, self.number = place
        self.checksum = 0  # CRC-32 of the lines that were read
        self._lines = numbered_lines(path, *place)

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        self.offset += len(line)
        self.checksum = zlib.crc32(line, self.checksum)
        return decode_line(line, self.path, self.number)

    @property
    def place(self) -> Place:
        """The place after the last line that was read."""
        return Place(self.offset, self.number)


@dataclasses.dataclass(frozen=True)
class RowIndex:
    """The places of the rows of a file.

    Attributes:
        rows: number of rows in the file.
        places: place of every 4096th row.
        checksum: CRC-32 of the uncompressed text, without its header.
    """

    rows: int
    places: tuple[Place, ...]
    checksum: int


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Rows of texts of a file, in order and from any row on.

    Attributes:
        path: path of the file.
        parse: function that takes `Lines` and yields the rows. It reads a line when a
            row needs it.
        names: names of the chosen columns; none for a file without a header.
        begin: place after the header.
    """

    path: FilePath
    parse: Callable[[Lines], Iterator[Row]]
    names: tuple[str, ...] = ()
    begin: Place = _START

    @classmethod
    def of_lines(cls, path: FilePath) -> Self:
        """Returns the lines of a file, plain or gzip (`.gz`), as rows of one text."""
        return cls(path, _line_rows)

    @classmethod
    def of(cls, path: FilePath, columns: Sequence[str] | None, width: int) -> Self:
        """Returns the rows of a file in the form of its ending.

        Args:
            path: path of the file.
            columns: names of the columns with the texts. They are required if a CSV or
                JSONL file has more columns than `width`. A TSV file has a header if
                they are given.
            width: number of texts of a row, 1 or 2.

        Returns:
            A `TextRows`.

        Raises:
            ValueError: if the file has no rows, or not the columns.
        """
        form = table_form(path)
        if form == "jsonl":
            rows = cls._of_json(path, columns, width)
        elif form == "csv" or (form == "tsv" and columns is not None):
            header = read_header(path)
            found = _find_columns(path, header.names, columns, width)
            rows = cls.of_columns(path, header, found)
        elif width == 1:
            return cls.of_lines(path)
        else:
            parse = functools.partial(_tab_rows, count=None, places=(0, 1))
            rows = cls(path, parse)
        if next(iter(rows), None) is None:
            raise _no_rows(path)
        return rows

    @classmethod
    def of_columns(cls, path: FilePath, header: Header, places: Sequence[int]) -> Self:
        """Returns the rows of some columns of a CSV or TSV file.

        Args:
            path: path of the file.
            header: its header. If the place of the header is the beginning of a TSV
                file, its first line is a row too.
            places: places of the columns in the header, from 0.

        Returns:
            A `TextRows`.
        """
        count = len(header.names)
        if table_form(path) == "csv":
            parse = functools.partial(
                _csv_rows, count=count, places=places, delimiter=header.delimiter
            )
        else:
            parse = functools.partial(_tab_rows, count=count, places=places)
        names = tuple(header.names[place] for place in places)
        return cls(path, parse, names, header.place)

    @classmethod
    def _of_json(
        cls, path: FilePath, columns: Sequence[str] | None, width: int
    ) -> Self:
        first = next(json_records(Lines(path)), {})
        names = [*flat_names(first)]
        values = [json_value(first, name) for name in columns or ()]
        if len(values) == width and None not in values:
            names = [*(columns or ())]
        else:
            names = [names[i] for i in _find_columns(path, names, columns, width)]
        return cls(path, functools.partial(_json_rows, names=names), tuple(names))

    def __iter__(self) -> Iterator[Row]:
        """Iterates over all rows in order."""
        return self.parse(Lines(self.path, self.begin))

    def numbered(self) -> Iterator[tuple[int, Row]]:
        """Iterates over all rows, each after the number of the line where it ends."""
        lines = Lines(self.path, self.begin)
        for row in self.parse(lines):
            yield lines.number, row

    @functools.cached_property
    def index(self) -> RowIndex:
        """The places of the rows. The first use reads and checks the whole file."""
        lines = Lines(self.path, self.begin)
        places, number = [self.begin], 0
        for number, _ in enumerate(self.parse(lines), start=1):
            if number % _STRIDE == 0:
                places.append(lines.place)
        return RowIndex(number, tuple(places), lines.checksum)

    def reader(self) -> "RowReader":
        """Returns a reader of ranges of rows."""
        return RowReader(self)


class RowReader:
    """Reads ranges of rows of a file. Consecutive ranges are read fastest.

    Args:
        rows: the rows of the file.
    """

    def __init__(self, rows: TextRows) -> None:
        self._rows = rows
        self._next = -1
        self._iterator: Iterator[Row] = iter(())

    def read(self, start: int, stop: int) -> list[Row]:
        """Returns the rows `start` to `stop`, exclusive, counted from 0.

        Raises:
            ValueError: if the file has fewer rows than when it was indexed.
        """
        rows = self._rows
        if start != self._next:
            block, skip = divmod(start, _STRIDE)
            self._iterator = rows.parse(Lines(rows.path, rows.index.places[block]))
            for _ in itertools.islice(self._iterator, skip):
                pass
        self._next = stop
        found = list(itertools.islice(self._iterator, stop - start))
        if len(found) < stop - start:
            raise ValueError(
                f"`{rows.path}` must be a file that can be read again and does not "
                f"change; it had {rows.index.rows} lines and now has "
                f"{start + len(found)}. Write the output of a pipe to a file first."
            )
        return found


def _find_columns(
    path: FilePath, header: Sequence[str], columns: Sequence[str] | None, width: int
) -> list[int]:
    """Returns the places of columns in a header, or of all columns without names."""
    names = [name.strip() for name in header]
    if not any(names):
        raise _no_rows(path)
    if columns is None and len(names) == width:
        return [*range(width)]
    if columns is None or [names.count(name) for name in columns] != [1] * width:
        received = "no `columns`" if columns is None else f"`columns={[*columns]}`"
        raise ValueError(
            f"`columns` must name {_NUMBERS[width]} of `{path}`; received {received}, "
            f"and the file has the columns {', '.join(map(repr, names))}. Give "
            f"{'the name of one' if width == 1 else 'two'} of these."
        )
    return [names.index(name) for name in columns]


def _no_rows(path: FilePath) -> ValueError:
    return ValueError(
        f"A file with columns must have rows of texts; `{path}` has none."
    )


# The forms. Each function takes lines and yields rows.


def _line_rows(lines: Lines) -> Iterator[Row]:
    for line in lines:
        yield (line,)


def _tab_rows(lines: Lines, count: int | None, places: Sequence[int]) -> Iterator[Row]:
    """Splits lines at tabs. Quotation marks are characters of a text.

    `count` is the number of columns of the first line; `None`: two columns.
    """
    for line in filter(None, lines):
        texts = line.split("\t")
        if len(texts) != (count or 2):
            where = f"line {lines.number} of `{lines.path}` has {len(texts)}"
            if count is not None:
                raise ValueError(
                    f"Each line of a TSV file must have the {count} columns of its "
                    f"first line, separated by tabs; {where}. Fix or remove the line."
                )
            raise ValueError(
                "A file with sources and targets must have two columns separated by a "
                f"tab; {where}. Fix the line, or pass two files, the sources and the "
                "targets. A .tsv file with a header requires `columns`."
            )
        yield tuple(texts[place] for place in places)


def _csv_records(lines: Lines, delimiter: str) -> Iterator[list[str]]:
    """Yields the records of a CSV file that are not blank."""
    if csv.field_size_limit() < _LONGEST_TEXT:
        csv.field_size_limit(_LONGEST_TEXT)
    texts = (f"{line}\n" for line in lines)  # A text in quotes may have several lines.
    records = csv.reader(texts, delimiter=delimiter, strict=True)
    while True:
        first = lines.number + 1
        try:
            record = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                "A CSV file must have a text in quotation marks if it contains one, "
                f"and each of these twice; the row that begins in line {first} of "
                f"`{lines.path}` has an error in line {lines.number}: {error}."
            ) from error
        if record:
            yield record


def _csv_rows(
    lines: Lines, count: int, places: Sequence[int], delimiter: str
) -> Iterator[Row]:
    for record in _csv_records(lines, delimiter):
        if len(record) != count:
            raise ValueError(
                f"Each row of a CSV file must have as many columns as its header; the "
                f"row that ends in line {lines.number} of `{lines.path}` has "
                f"{len(record)}, and the header has {count}. Write a text with a "
                f"{delimiter!r} in quotation marks."
            )
        yield tuple(record[place] for place in places)


def json_records(
    lines: Lines, example: str = '{"en": "yes", "de": "ja"}'
) -> Iterator[Mapping[str, object]]:
    """Yields the objects of the lines of a JSONL file that are not blank.

    Args:
        lines: the lines of the file.
        example: str, an object that the error message shows.

    Yields:
        Dictionaries.

    Raises:
        ValueError: if a line has no JSON object.
    """
    for line in filter(str.strip, lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            _refuse_json(lines, example, f"is not JSON ({error})")
        if not isinstance(record, dict):
            _refuse_json(lines, example, f"has {line:.40}")
        yield record


def _refuse_json(lines: Lines, example: str, problem: str) -> NoReturn:
    raise ValueError(
        "A JSONL file must have a JSON object with names in each line, such as "
        f"{example}; line {lines.number} of `{lines.path}` {problem}."
    )


def _json_rows(lines: Lines, names: Sequence[str]) -> Iterator[Row]:
    for record in json_records(lines):
        yield tuple(json_text(record, name, lines) for name in names)


def json_text(record: Mapping[str, object], name: str, lines: Lines) -> str:
    """Returns a text of an object of a JSONL file. Its line breaks become line feeds.

    Args:
        record: the object.
        name: str, name of the text; `"a.b"` is the name `b` in the object `a`.
        lines: the lines, of which the object is in the last one read.

    Returns:
        str.

    Raises:
        ValueError: if the value is not a text of valid Unicode without NUL characters.
    """
    text = json_value(record, name)
    if not isinstance(text, str) or "\0" in text:
        problem = f"is {json.dumps(text):.40}"
        if text is None:
            problem = f"is missing or null; the object has {', '.join(record)}"
        raise ValueError(
            f"The column {name!r} of a JSONL file must be a text without NUL "
            f"characters; in line {lines.number} of `{lines.path}`, it {problem}. Fix "
            "or remove the line."
        )
    check_unicode(text, os.fspath(lines.path), f"line {lines.number}")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def json_value(record: Mapping[str, object], name: str) -> object:
    """Returns the value of `name`, or of `a` and in it `b` if the name is `a.b`.

    Args:
        record: an object of a JSONL file.
        name: str.

    Returns:
        The value, or `None` if there is none.
    """
    if name in record:
        return record[name]
    outer, dot, inner = name.partition(".")
    value = record.get(outer)
    return json_value(value, inner) if dot and isinstance(value, dict) else None


def flat_names(record: Mapping[str, object]) -> Iterator[str]:
    """Yields the names of an object, and `a.b` for the name `b` of an object `a`.

    Args:
        record: an object of a JSONL file.

    Yields:
        str.
    """
    for name, value in record.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in flat_names(value))
        else:
            yield name
