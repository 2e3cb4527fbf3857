"""Rows of texts: the forms of files, their columns, and their errors."""

import csv
import gzip
import json

import pytest

from keras_transformer_runtime.text_rows import TextRows, table_form

pytestmark = pytest.mark.once("torch")

PAIRS = [("a, b", 'say "x"'), ("", "y\tz"), ("é\u2028f", "two\nlines"), ("d", "")]


def write(path, text):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def rows(path, columns=None, width=2):
    return [*TextRows.of(path, columns, width)]


@pytest.mark.parametrize(
    "name, form",
    [
        ("a.tsv", "tsv"),
        ("a.b.CSV.gz", "csv"),
        ("a.jsonl", "jsonl"),
        ("a.ndjson.gz", "jsonl"),
        ("a.csv.en", None),
        ("csv", None),
    ],
)
def test_the_ending_is_the_form(name, form):
    assert table_form(name) == form


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("dialect", ["excel", "unix"])
@pytest.mark.parametrize("delimiter", [*",;\t"])
def test_csv_as_the_standard_library_writes_it(tmp_path, ending, dialect, delimiter):
    path = tmp_path / "plain.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, dialect, delimiter=delimiter)
        writer.writerow(["id", "de", "en"])
        for number, (source, target) in enumerate(PAIRS):
            writer.writerow([number, target, source])
            file.write("\n" * (number % 2))  # lines without a row
    path = write(tmp_path / f"pairs.{ending}", path.read_bytes().decode())
    assert rows(path, ["en", "de"]) == PAIRS
    assert rows(path, ["id"], 1) == [("0",), ("1",), ("2",), ("3",)]


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_jsonl_as_the_standard_library_writes_it(tmp_path, ensure_ascii):
    records = [{"id": 1, "translation": {"en": s, "de": t}} for s, t in PAIRS]
    lines = [json.dumps(record, ensure_ascii=ensure_ascii) for record in records]
    path = write(tmp_path / "pairs.jsonl.gz", "\ufeff" + "\r\n\r\n".join(lines))
    assert rows(path, ["translation.en", "translation.de"]) == PAIRS
    flat = [json.dumps({"a.b": s, "a": {"b": "-"}}) for s, _ in PAIRS]
    path = write(tmp_path / "flat.ndjson", "\n".join(flat))
    assert rows(path, ["a.b"], 1) == [(source,) for source, _ in PAIRS]
    path = write(tmp_path / "breaks.jsonl", '{"text": "a\\r\\nb\\rc"}\n')
    assert rows(path, None, 1) == [("a\nb\nc",)]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r\n\r\n"])
def test_tsv_with_and_without_a_header(tmp_path, end):
    text = '\ufeffen\tid\tde\r\na "b\t1\tx\r\n\r\n"c"\t2\ty' + end
    path = write(tmp_path / "pairs.tsv", text)
    assert rows(path, ["de", "en"]) == [("x", 'a "b'), ("y", '"c"')]
    assert rows(path, ["id"], 1) == [("1",), ("2",)]
    path = write(tmp_path / "bare.tsv", "en\tde\n\na\tb" + end)
    assert rows(path) == [("en", "de"), ("a", "b")]
    # Without a name, running text has the whole lines.
    assert rows(path, None, 1)[:3] == [("en\tde",), ("",), ("a\tb",)]


def test_two_columns_need_no_names(tmp_path):
    path = write(tmp_path / "a.csv", " de ,en\nx,a\n")
    found = TextRows.of(path, None, 2)
    assert (found.names, [*found]) == (("de", "en"), [("x", "a")])
    record = {"translation": {"de": "x", "en": "a"}}
    found = TextRows.of(write(tmp_path / "a.jsonl", json.dumps(record)), None, 2)
    assert found.names == ("translation.de", "translation.en")
    assert [*found] == [("x", "a")]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "tsv"])
def test_any_range_of_rows(tmp_path, ending):
    texts = [f"{'é' * (n % 5)}{n}" for n in range(9000)]
    lines = {
        "csv": ["text,n", *(f'"{text}\n;",{n % 7}' for n, text in enumerate(texts))],
        "jsonl": [json.dumps({"text": f"{text}\n;"}) + "\n" for text in texts],
        "tsv": ["n\ttext", *(f"0\t{text};" for text in texts)],
    }
    path = write(tmp_path / f"a.{ending}.gz", "\n".join(lines[ending]))
    found = TextRows.of(path, ["text"], 1)
    separator = ";" if ending == "tsv" else "\n;"
    expected = [(text + separator,) for text in texts]
    assert (found.index.rows, len(found.index.places)) == (9000, 3)
    reader = found.reader()
    for start, stop in [(0, 3), (3, 5), (8190, 8195), (4096, 4097), (8999, 9000)]:
        assert reader.read(start, stop) == expected[start:stop]
    assert [*found] == expected


@pytest.mark.parametrize(
    "name, text, columns, message",
    [
        ("a.csv", "id,en,de\n1,a,b\n", None, "no `columns`, .* 'id', 'en', 'de'"),
        ("a.csv", "en,de\na,b\n", ["en", "fr"], r"columns=\['en', 'fr'\]`, .* 'en'"),
        ("a.csv", "en,en\na,b\n", ["en", "en"], "has the columns 'en', 'en'"),
        ("a.csv", "en,de\na,b\n", ["en"], "two columns, .* received `columns="),
        ("a.csv", "en,de\n", None, "must have rows of texts; `.*` has none"),
        ("a.csv", "en,de\na,b\n\na,b,c\n", None, "line 4 of .* has 3, .* header has 2"),
        ("a.csv", 'en,de\na,"b" c\n', None, "in line 2 of .* an error in line 2"),
        ("a.csv", 'en,de\na,b\nc,"d\ne\n', None, "begins in line 3 .* error in line 4"),
        ("a.tsv", "a\tb\nc\n", None, "two columns .* line 2 of .* has 1"),
        ("a.txt", "a\tb\tc\n", None, "line 1 of .* has 3. Fix .* requires `columns`"),
        ("a.tsv", "en\tde\na\tb\nc\n", ["en", "de"], "the 2 columns .*; line 3 of"),
        ("a.tsv", "a\tb\n", ["en", "de"], "the file has the columns 'a', 'b'"),
        ("a.jsonl", '{"a": {"en": "x"}}\n', None, "has the columns 'a.en'"),
        ("a.jsonl", '{"en": "x", "de": ""}\n{\n', None, "line 2 of .* is not JSON"),
        ("a.jsonl", '["x", "y"]\n', None, r'line 1 of .* has \["x"'),
        ("a.jsonl", '{"en": "x", "de": 3}\n', None, "'de' .* in line 1 of .* is 3"),
        ("a.jsonl", '{"en": "", "de": ""}\n\n{"en": ""}\n', None, "line 3 .* missing"),
        ("a.jsonl", '{"en": "", "de": "\\u0000"}\n', None, "without NUL"),
        ("a.jsonl", '{"en": "", "de": "\\ud800"}\n', None, "lone surrogate .* line 1"),
        ("a.jsonl", "\n", None, "must have rows"),
    ],
)
def test_errors(tmp_path, name, text, columns, message):
    path = write(tmp_path / name, text)
    with pytest.raises(ValueError, match=message):
        rows(path, columns)
