import gzip

import numpy as np
import pytest

from keras_transformer.text import read_lines
from keras_transformer_runtime.text_rows import TextRows

pytestmark = pytest.mark.once

LINES = [f"{'x' * (n % 7)}é{n}" for n in range(10_000)]


@pytest.fixture(params=["lines.txt", "lines.txt.gz"])
def path(request, tmp_path):
    text = "\n".join(LINES).encode()
    path = tmp_path / request.param
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def index_of(path):
    return TextRows.of_lines(path).index


def lines_of(path, start, stop):
    return [line for (line,) in TextRows.of_lines(path).reader().read(start, stop)]


def test_read_any_range_of_lines(path):
    rows = TextRows.of_lines(path)
    assert rows.index.rows == len(LINES)
    assert len(rows.index.places) == 3
    reader = rows.reader()
    for start, stop in [
        (0, 3),
        (3, 13),
        (4095, 4097),
        (8000, 9999),
        (7, 7),
        (9999, 10_000),
    ]:
        found = [line for (line,) in reader.read(start, stop)]
        assert found == LINES[start:stop]


def test_last_line_with_and_without_line_ending(tmp_path):
    path = tmp_path / "lines.txt"
    for ending in ("", "\n"):
        path.write_bytes(f"a\r\n\r\nb{ending}".encode())
        assert index_of(path).rows == 3
        assert lines_of(path, 0, 3) == ["a", "", "b"]


def test_index_checks_the_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match=r"UTF-8; line 2 of `.*lines\.txt`"):
        index_of(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"lines\.txt` is empty"):
        index_of(path)


def test_damaged_gzip_file(tmp_path):
    random = np.random.default_rng(0).integers(97, 123, 50_000, dtype=np.uint8)
    whole = gzip.compress(b"first\n" + random.tobytes())
    path = tmp_path / "lines.txt.gz"
    for content in (whole[:-9], whole[:9000] + bytes(9) + whole[9009:], b"words\n"):
        path.write_bytes(content)
        message = r"`\.gz` file must be complete; `.*lines\.txt\.gz` is damaged after"
        with pytest.raises(ValueError, match=message):
            index_of(path)


def test_file_that_lost_lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\n")
    rows = TextRows.of_lines(path)
    assert rows.index.rows == 3
    path.write_text("a\n")
    message = r"`.*lines\.txt` must be .* does not change; it had 3 lines and now has 1"
    with pytest.raises(ValueError, match=message):
        rows.reader().read(0, 2)


def test_only_line_endings_are_removed(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff a \r\n\n\u2028b\tc\x85\vd\r".encode())
    assert list(read_lines(path)) == [" a ", "", "\u2028b\tc\x85\vd"]


@pytest.mark.parametrize("text", ["a\rb\rc\r", "a\rb\n", "a\nb\rc\nd", "a\nb\r\r\n"])
def test_a_carriage_return_alone_is_an_error(text, tmp_path):
    path = tmp_path / "lines.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    number = 1 + text.split("\r")[0].count("\n")
    message = rf"line {number} of `.*lines\.txt\.gz` contains a carriage return alone"
    for read in (index_of, lambda path: [*read_lines(path)]):
        with pytest.raises(ValueError, match=message):
            read(path)
