"""Labelled texts: their columns, labels and classes in each form, and the errors."""

import csv
import gzip
import io
import json

import numpy as np
import pytest

from keras_transformer_runtime.labels.labelled_texts import read_labelled_texts

pytestmark = pytest.mark.once("torch")

ROWS = [
    {"id": "1", "text": "a fine\u2028film", "label": "good"},
    {"id": "2", "text": 'no "plot", none', "label": " bad "},
    {"id": "3", "text": "funny", "label": "good"},
]


def read(folder, name, text, *arguments, **options):
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return read_labelled_texts(path, *arguments, **options)


def write_rows(rows, form):
    if form == "jsonl":
        return "".join(f"{json.dumps(row)}\n\n" for row in rows)
    if form == "csv":
        file = io.StringIO()
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()
    return "\n".join("\t".join(row) for row in [rows[0], *(r.values() for r in rows)])


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.jsonl.gz", "a.txt"])
def test_columns_that_need_no_names(tmp_path, name):
    text = write_rows(ROWS, name.split(".")[1])
    found = read(tmp_path, name, text)
    assert found.texts == tuple(row["text"] for row in ROWS)
    assert found.second_texts is None
    assert found.labels == (("good",), ("bad",), ("good",))
    assert found.class_names == ("bad", "good")
    assert found.columns == ("text", "label")
    assert found.lines == ((1, 3, 5) if "jsonl" in name else (2, 3, 4))
    assert found.counts == {"bad": 1, "good": 2}
    assert found.targets().tolist() == [1, 0, 1]
    assert found.targets().dtype == "int32"
    assert (
        found.layout == "The texts are in column 'text', the labels in column 'label'."
    )
    named = read(tmp_path, name, text, ["id", "text", "label"])
    assert named.second_texts == found.texts
    assert named.keys[2] == ("3", "funny")
    part = named.subset([2, 0])
    assert part.keys == [named.keys[2], named.keys[0]]
    assert (part.labels, part.lines) == (found.labels[::2], found.lines[::-2])
    assert part.class_names == named.class_names


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
@pytest.mark.parametrize("names", ["text_a text_b", "premise hypothesis"])
def test_two_texts(tmp_path, name, names):
    rows = [
        dict(zip(["label", *names.split()], values, strict=True))
        for values in [("10", "a", "b"), ("9", "a", "c")]
    ]
    found = read(tmp_path, name, write_rows(rows, name[2:]))
    assert (found.texts, found.second_texts) == (("a", "a"), ("b", "c"))
    assert found.class_names == ("9", "10")  # sorted by number
    first, second = names.split()
    assert found.layout.startswith(
        f"The texts are in columns '{first}' and '{second}',"
    )


@pytest.mark.parametrize(
    "lines, columns",
    [
        (["x\ta", "y\tb", "x\tc", "x\td"], ("2", "1")),
        (["a\tx", "b\ty", "c\tx", "d\ty"], ("1", "2")),
        (["a\t1\tx", "b\tq\ty", "c\t1\tx", "d\t1\tx"], ("1", "2", "3")),
        (["x\t1\ta", "y\tq\tb", "x\t1\tc", "x\t1\td"], ("2", "3", "1")),
    ],
)
def test_tabs_without_a_header(tmp_path, lines, columns):
    found = read(tmp_path, "a.tsv", "\n".join(lines))
    assert found.columns == columns
    assert found.class_names == ("x", "y")
    assert len(found) == 4
    assert found.layout.startswith(
        f"The texts are in column{'s' * (len(columns) > 2)} "
    )
    assert found.layout.endswith(
        f" the labels in column {columns[-1]}. The labels have 2 different values, and "
        f"column {4 - int(columns[-1]) - (len(columns) == 2)} has 4."
    )
    # Few rows are ambiguous; the columns of the training data are not.
    few = read(tmp_path, "b.tsv", lines[0], found.columns, class_names=["y", "x"])
    assert (few.keys, few.labels) == (found.keys[:1], found.labels[:1])
    assert few.targets().tolist() == [1]
    assert not few.layout.endswith("4.")


def test_several_labels(tmp_path):
    records = [
        {"text": "a", "labels": []},
        {"text": "b", "labels": ["long", "funny", "long"]},
        {"text": "c", "labels": "funny"},
    ]
    for name, text in {
        "a.csv": 'text,labels\na,\nb,"long, funny"\nc,funny\n',
        "a.jsonl": write_rows(records, "jsonl"),
    }.items():
        found = read(tmp_path, name, text, multi_label=True)
        assert found.labels == ((), ("long", "funny"), ("funny",))
        assert found.class_names == ("funny", "long")
        assert found.counts == {"funny": 2, "long": 1}
        np.testing.assert_array_equal(found.targets(), [[0, 0], [1, 1], [1, 0]])
        assert found.targets().dtype == "float32"


def test_labels_of_json_may_be_ints(tmp_path):
    text = '{"text": "a", "label": 2}\n{"text": "b", "label": "-1"}\n'
    found = read(tmp_path, "a.ndjson", text)
    assert found.class_names == ("-1", "2")


HEADER = '{"text": "a", "label": "x"}\n'


@pytest.mark.parametrize(
    "name, text, options, message",
    [
        ("a.csv", "a,b\n1,2\n", {}, "received no `columns`, .* columns 'a', 'b'. Give"),
        ("a.csv", "a,b\n1,2\n", {"columns": ["a", "c"]}, r"columns=\['a', 'c'\]`, and"),
        ("a.csv", "a,b\n1,2\n", {"columns": ["1", "2"]}, "has the columns 'a', 'b'"),
        ("a.csv", "a,a\n1,2\n", {"columns": ["a", "a"]}, "has the columns 'a', 'a'"),
        ("a.csv", "text,sentence,label\na,b,x\n", {}, "'text', 'sentence', 'label'"),
        ("a.csv", "a,b\n", {"columns": "ab"}, "`columns` must .* `columns='ab'`"),
        ("a.csv", "a,b\n", {"columns": ["a"]}, r"one or two columns .*=\['a'\]`"),
        ("a.jsonl", '{"a": {"b": 1}}\n', {}, "has the columns 'a.b'"),
        ("a.jsonl", HEADER, {"columns": ["text", "y"]}, "columns 'text', 'label'"),
        ("a.tsv", "x\ta\ny\tb\n", {}, "half as many .* 'x', 'a' in .* Pass"),
        ("a.tsv", "x\t1\nx\t2\ny\t3\ny\t4\n", {}, "has the columns 'x', '1' in"),
        ("a.tsv", "a\nb\n", {}, "without a header .* has the columns 'a' in"),
        ("a.tsv", "a\tb\tc\td\n", {}, "without a header .* 'c', 'd' in"),
        ("a.tsv", "a\tb\n", {"columns": ["1", "3"]}, r"=\['1', '3'\]`, and"),
        ("a.tsv", "a\tb\n", {"columns": ["2", "2"]}, r"=\['2', '2'\]`, and"),
        ("a.tsv", "a\tb\n", {"columns": ["0", "2"]}, r"=\['0', '2'\]`, and"),
        ("a.tsv", "text\tlabel\na\tx\n\nb\n", {}, "2 columns .* line 4 of .* has 1"),
        ("a.tsv", "text\tlabel\n", {}, "must have rows; .*a.tsv` has none"),
        ("a.csv", "text,label\na,x\n ,y\n", {}, "not be empty; that in line 3 of"),
        ("a.csv", "text,label\na,x\nb,\n", {}, 'not empty, .* line 3 of .* is "". Fix'),
        ("a.csv", 'text,label\na,x\nb,"y\nz"\n', {}, "of one line .* in line 4 of"),
        ("a.csv", "text,label\na,x\nb,x\n", {}, "two classes; .* are 'x'. Check"),
        ("a.csv", "text,label\na,\"x,,y\"\n", {"multi_label": True}, "line 2 .*x,,y"),
        ("a.csv", "text,label\na,\n", {"multi_label": True}, "labels of .* are empty"),
        ("a.jsonl", f"{HEADER}\n[1]\n", {}, 'fine film.* line 3 of .* has \\[1\\]'),
        ("a.jsonl", HEADER + '{"text": 1, "label": 1}', {}, "'text' of .* line 2 of"),
        ("a.jsonl", HEADER + '{"text": "b"}', {}, "that in line 2 .* is null"),
        ("a.jsonl", '{"text": "b", "label": true}', {}, "line 1 of .* is true. Fix"),
        ("a.jsonl", '{"text": "b", "label": 1.5}', {}, "line 1 of .* is 1.5. Fix"),
        ("a.jsonl", '{"text": "b", "label": "\\ud800"}', {}, "U\\+D800 .* in line 1"),
        ("a.jsonl", HEADER + '{"text": "b", "label": ["y"]}', {}, "label; .* line 2"),
        (
            *("a.csv", "text,label\na,x\nb,z\n", {"class_names": ["x", "y"]}),
            "training data too; 'z' in line 3 of .*a.csv` is not one of 'x', 'y'. Fix",
        ),
    ],
)  # fmt: skip
def test_errors(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, name, text, **options)
