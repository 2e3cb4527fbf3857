"""Texts of a file and their labels.

A row has one text, or two texts such as a premise and a hypothesis, and a label. All
rows are held in memory.
"""

import collections
import dataclasses
import functools
import json
import os
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.text_files import FilePath
from keras_transformer_runtime.text_rows import (
    Header,
    Lines,
    Place,
    TextRows,
    flat_names,
    json_records,
    json_text,
    json_value,
    read_header,
    table_form,
)

# Columns of texts and of labels that need not be named.
_TEXTS = (
    ("text",),
    ("sentence",),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
)
_LABELS = (("label",), ("labels",))
_EXAMPLE = '{"text": "a fine film", "label": "good"}'


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """Texts of a file and their labels, in the order of the file.

    Attributes:
        path: path of the file.
        texts: the texts, or the first of two texts of each row.
        second_texts: the second texts, or `None`.
        labels: the labels of each row: one, or any number if `multi_label`.
        class_names: names of the classes. The id of a class is its place.
        lines: number of the line where each row ends.
        multi_label: whether a row may have no label, or several.
        columns: names of the columns of the texts and of the label. In a TSV file
            without a header, their numbers from 1.
        layout: a sentence that tells which columns have the texts and the labels.
    """

    path: FilePath
    texts: tuple[str, ...]
    second_texts: tuple[str, ...] | None
    labels: tuple[tuple[str, ...], ...]
    class_names: tuple[str, ...]
    lines: tuple[int, ...]
    multi_label: bool
    columns: tuple[str, ...]
    layout: str

    def __len__(self) -> int:
        return len(self.texts)

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """The number of examples of each class."""
        counts = collections.Counter(name for row in self.labels for name in row)
        return {name: counts[name] for name in self.class_names}

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """The text, or the two texts, of each row."""
        if self.second_texts is None:
            return [(text,) for text in self.texts]
        return [*zip(self.texts, self.second_texts, strict=True)]

    def targets(self) -> np.ndarray:
        """Returns what a model learns.

        Returns:
            int32 array of shape `(rows,)`, the ids of the classes. If `multi_label`,
            float32 array of shape `(rows, classes)`, 1 for the labels of a row.
        """
        ids = {name: place for place, name in enumerate(self.class_names)}
        if not self.multi_label:
            return np.array([ids[name] for [name] in self.labels], "int32")
        targets = np.zeros((len(self), len(ids)), "float32")
        for row, names in zip(targets, self.labels, strict=True):
            row[[ids[name] for name in names]] = 1
        return targets

    def subset(self, rows: Sequence[int]) -> "LabelledTexts":
        """Returns some rows, with the same classes.

        Args:
            rows: places of the rows, from 0.

        Returns:
            A `LabelledTexts`.
        """
        second = self.second_texts
        return dataclasses.replace(
            self,
            texts=tuple(self.texts[row] for row in rows),
            second_texts=None if second is None else tuple(second[row] for row in rows),
            labels=tuple(self.labels[row] for row in rows),
            lines=tuple(self.lines[row] for row in rows),
        )


def read_labelled_texts(
    path: FilePath,
    columns: Sequence[str] | None = None,
    multi_label: bool = False,
    class_names: Sequence[str] | None = None,
) -> LabelledTexts:
    r"""Reads the texts and the labels of a file.

    The ending of the file is its form: `.csv`, `.jsonl` or `.ndjson`, each of them with
    `.gz` or without. Other files have columns that are separated by tabs.

    Without `columns`, these columns are read: `text`, `sentence`, `text_a` and
    `text_b`, `premise` and `hypothesis`, or `sentence1` and `sentence2`, and the column
    `label` or `labels`. If the first line of a file with tabs does not have these
    names, the file has no header. The column of its labels is then the first or the
    last one: that with fewer different values, at most half as many.

    Args:
        path: path of the file, plain or gzip (`.gz`).
        columns: names of the column of the text, or of the two columns of two texts,
            and of the column of the label. In a file with tabs, numbers of columns from
            1 on if its first line does not have these names.
        multi_label: bool, whether a row may have no label, or several: separated by
            commas, or a list in a JSONL file. A label that is repeated counts once.
        class_names: names of the classes, such as those of the training data. Default:
            the labels of the file, sorted by number if all are whole numbers.

    Returns:
        A `LabelledTexts`.

    Raises:
        ValueError: if the columns are not clear, if a row has an empty text or an
            invalid label, or a label that `class_names` lacks, or if the file has no
            rows.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.tsv"
    >>> rows = "label\ttext\ngood\ta fine film\nbad\tno plot\ngood\tfunny\n"
    >>> _ = path.write_text(rows, "utf-8")
    >>> train = read_labelled_texts(path)
    >>> train.class_names, train.texts
    (('bad', 'good'), ('a fine film', 'no plot', 'funny'))
    >>> train.targets()
    array([1, 0, 1], dtype=int32)
    """
    if columns is not None and (isinstance(columns, str) or len(columns) not in (2, 3)):
        raise ValueError(
            "`columns` must name one or two columns of texts, and then that of the "
            f"label; received `columns={columns!r}`. Pass for example "
            '["text", "label"], or ["premise", "hypothesis", "label"].'
        )
    read = _read_json if table_form(path) == "jsonl" else _read_cells
    table = read(path, columns)
    if not table.rows:
        raise ValueError(f"A file of labelled texts must have rows; `{path}` has none.")
    labels = []
    for line, texts, label in table.rows:
        if not all(text.strip() for text in texts):
            raise ValueError(
                f"A text must not be empty; that in line {line} of `{path}` is. Fix or "
                "remove the row."
            )
        labels.append(_parse_label(label, multi_label, path, line))
    texts, *second = zip(*(row.texts for row in table.rows), strict=True)
    lines = tuple(row.line for row in table.rows)
    names = _class_names(path, labels, lines, class_names)
    return LabelledTexts(
        path=path,
        texts=texts,
        second_texts=second[0] if second else None,
        labels=tuple(labels),
        class_names=names,
        lines=lines,
        multi_label=multi_label,
        columns=table.columns,
        layout=table.layout,
    )


class _Row(NamedTuple):
    line: int
    texts: tuple[str, ...]
    label: object


class _Table(NamedTuple):
    columns: tuple[str, ...]
    layout: str
    rows: list[_Row]


def _read_json(path: FilePath, columns: Sequence[str] | None) -> _Table:
    first = next(json_records(Lines(path), _EXAMPLE), {})
    names = columns or _known_columns([*flat_names(first)])
    if names is None or any(json_value(first, name) is None for name in names):
        raise _wrong_columns(path, [*flat_names(first)], columns)
    lines, rows = Lines(path), []
    for record in json_records(lines, _EXAMPLE):
        texts = tuple(json_text(record, name, lines) for name in names[:-1])
        rows.append(_Row(lines.number, texts, json_value(record, names[-1])))
    return _Table(tuple(names), _layout([*map(repr, names)]), rows)


def _read_cells(path: FilePath, columns: Sequence[str] | None) -> _Table:
    """Reads a CSV file with a header, or columns separated by tabs with or without."""
    header = read_header(path)
    has_tabs = table_form(path) != "csv"
    chosen, reason = columns or _known_columns(header.names), ""
    if chosen is None and has_tabs:
        chosen, reason = _guess_columns(path, header._replace(place=Place(0, 0)))
    if chosen is None:
        raise _wrong_columns(path, header.names, columns)
    if all(header.names.count(name) == 1 for name in chosen):
        places = [header.names.index(name) for name in chosen]
        layout = _layout([*map(repr, chosen)])
    elif has_tabs and _are_numbers(chosen, len(header.names)):
        header = header._replace(place=Place(0, 0))
        places = [int(name) - 1 for name in chosen]
        layout = _layout(chosen) + reason
    else:
        raise _wrong_columns(path, header.names, columns)
    numbered = TextRows.of_columns(path, header, places).numbered()
    rows = [_Row(line, row[:-1], row[-1]) for line, row in numbered]
    return _Table(tuple(chosen), layout, rows)


def _known_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the columns that need no names, if they are in a file once."""
    texts = [known for known in _TEXTS if {*known} <= {*names}]
    labels = [known for known in _LABELS if {*known} <= {*names}]
    return texts[0] + labels[0] if len(texts) == len(labels) == 1 else None


def _are_numbers(names: Sequence[str], count: int) -> bool:
    numbers = [int(name) for name in names if name.isdecimal()]
    return len({*numbers}) == len(names) and 0 < min(numbers) <= max(numbers) <= count


def _guess_columns(path: FilePath, header: Header) -> tuple[tuple[str, ...], str]:
    """Finds the column of the labels in a file without a header.

    Returns the numbers of the columns, that of the labels last, and the reason.
    """
    count = len(header.names)
    columns: list[tuple[str, ...]] = []
    if count in (2, 3):
        rows = TextRows.of_columns(path, header, range(count))
        columns = [*zip(*rows, strict=True)]
    values = [len({text.strip() for text in column}) for column in columns]
    if columns and 2 * min(values[0], values[-1]) <= max(values[0], values[-1]):
        label = 0 if values[0] < values[-1] else count - 1
        other = count - 1 - label
        texts = [place for place in range(count) if place != label]
        if not any(all(map(_is_number, columns[place])) for place in texts):
            numbers = tuple(str(place + 1) for place in (*texts, label))
            return numbers, (
                f" The labels have {values[label]} different values, and column "
                f"{other + 1} has {values[other]}."
            )
    raise ValueError(
        "A file without a header must have one or two columns of texts, and in front "
        "of them or after them that of the labels, with at most half as many different "
        f"values; `{path}` has {_columns(header.names)} in its first line. Pass the "
        "numbers of the columns in `columns`, such as 1 and 2, that of the labels last."
    )


def _columns(names: Sequence[str]) -> str:
    shown = [f"{name[:40]!r}" for name in names[:9]] + ["more"] * (len(names) > 9)
    return f"the columns {', '.join(shown)}"


def _layout(names: Sequence[str]) -> str:
    *texts, label = names
    where = (
        f"column {texts[0]}" if len(texts) == 1 else f"columns {' and '.join(texts)}"
    )
    return f"The texts are in {where}, the labels in column {label}."


def _wrong_columns(
    path: FilePath, names: Sequence[str], columns: Sequence[str] | None
) -> ValueError:
    received = "no `columns`" if columns is None else f"`columns={[*columns]}`"
    return ValueError(
        f"`columns` must name the columns of the texts and of the labels of `{path}`; "
        f"received {received}, and the file has {_columns(names)}. Give the names of "
        "one or two columns of texts, and then that of the labels."
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*-?[0-9]+\s*", text) is not None


def _parse_label(
    value: object, multi_label: bool, path: FilePath, line: int
) -> tuple[str, ...]:
    where = f"line {line} of `{path}`"
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not multi_label:
        raise ValueError(
            f"A row must have one label; that in {where} is {json.dumps(value):.60}. "
            "Pass `multi_label=True` if a row may have several."
        )
    if multi_label and isinstance(value, str):
        values = value.split(",") if value.strip() else []
    names = []
    for each in values:
        name = str(each).strip()
        if isinstance(each, bool) or not isinstance(each, str | int):
            name = ""
        if not name or "\n" in name:
            raise ValueError(
                "A label must be a text of one line that is not empty, or an int; that "
                f"in {where} is {json.dumps(value):.60}. Fix or remove the row."
            )
        check_unicode(name, os.fspath(path), f"line {line}")
        names.append(name)
    return tuple(dict.fromkeys(names))


def _class_names(
    path: FilePath,
    labels: Sequence[tuple[str, ...]],
    lines: Sequence[int],
    known: Sequence[str] | None,
) -> tuple[str, ...]:
    if known is None:
        found = {name for names in labels for name in names}
        if len(found) < 2:
            raise ValueError(
                "Labelled texts must have at least two classes; the labels of "
                f"`{path}` are {', '.join(map(repr, found)) or 'empty'}. Check which "
                "column has the labels, and pass `columns`."
            )
        return sorted_names(found)
    for line, names in zip(lines, labels, strict=True):
        for name in {*names}.difference(known):
            raise ValueError(
                f"A label must be in the training data too; {name!r} in line {line} of "
                f"`{path}` is not one of {', '.join(map(repr, known)):.400}. Fix the "
                "label, or add examples of it to the training data."
            )
    return tuple(known)


def sorted_names(names: Collection[str]) -> tuple[str, ...]:
    """Sorts names, by number if all are whole numbers.

    Args:
        names: the names.

    Returns:
        tuple of str.
    """
    if all(map(_is_number, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
