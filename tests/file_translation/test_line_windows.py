import types

import pytest

from keras_transformer.file_translation.translation import model_side
from keras_transformer.text import CharacterTokenizer
from keras_transformer_runtime.file_translation.line_windows import (
    FileLines,
    PipeLines,
)

pytestmark = pytest.mark.once("torch")

TOKENIZER = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *" abcä"])
MODEL = types.SimpleNamespace(
    source_tokenizer=TOKENIZER,
    max_source_length=5,
    target_tokenizer=TOKENIZER,
    max_target_length=None,
)


class Pipe:
    """Gives one piece after the other."""

    def __init__(self, *pieces):
        self.pieces = list(pieces)

    def read1(self, size):
        return self.pieces.pop(0) if self.pieces else b""


def arriving(*pieces, size=100, refuses=False):
    lines = PipeLines(Pipe(*pieces), "a pipe", model_side(MODEL), refuses)
    return [(window.start, window.lines) for window in lines.windows(0, size)]


def test_lengths_of_lines():
    window = model_side(MODEL).window(
        7, ["ab", "", "abca", "abcab", "      ", "\u3000\t"]
    )
    assert window.start == 7
    assert window.lengths.tolist() == [3, 0, 5, 6, 0, 0]
    assert window.too_long.tolist() == [False] * 3 + [True] + [False] * 2
    # A side without a limit.
    assert not model_side(MODEL, "target").window(0, ["abc" * 99]).too_long.any()


def test_a_line_that_is_too_long_is_named():
    side = model_side(
        types.SimpleNamespace(**vars(MODEL) | {"max_target_length": 3}), "target"
    )
    side.check_lengths(side.window(0, ["ab"]), "b.de")
    message = (
        "`target` must have at most `max_target_length=3` tokens a line; received 4 "
        "tokens in line 12 of `b.de`. "
    )
    with pytest.raises(ValueError, match=message):
        side.check_lengths(side.window(10, ["a", "abc", "abcabc"]), "b.de")


def test_available_lines_form_one_window():
    assert arriving(b"a\nb\n", b"c\n") == [(0, ["a", "b"]), (2, ["c"])]
    assert arriving(b"a\nb\nc\n", size=2) == [(0, ["a", "b"]), (2, ["c"])]


def test_lines_arrive_in_pieces():
    pieces = "ä\r\nab".encode()
    pieces = [pieces[i : i + 1] for i in range(len(pieces))]
    assert arriving(*pieces) == [(0, ["ä"]), (1, ["ab"])]


def test_lines_after_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_text("a\nabcabc\n\nc")
    lines = FileLines(path, model_side(MODEL)).windows(1, 2)
    found = [(window.start, window.lines) for window in lines]
    assert found == [(1, ["abcabc", ""]), (3, ["c"])]


def test_incomplete_and_missing_lines():
    assert arriving(b"a\n\n\nb") == [(0, ["a", "", ""]), (3, ["b"])]
    assert arriving(b"\n") == [(0, [""])]
    assert arriving() == []


def test_lines_are_read_on_demand():
    pipe = Pipe(b"a\n", b"b\n")
    windows = PipeLines(pipe, "a pipe", model_side(MODEL), False).windows(0, 9)
    assert next(windows).lines == ["a"]
    assert pipe.pieces == [b"b\n"]


def test_lines_of_a_pipe_are_numbered_in_errors():
    with pytest.raises(ValueError, match="UTF-8; line 3 of `a pipe` is not"):
        arriving(b"a\nb\n", b"\xff\n")
    pieces = [b"abcabc\n", b"a\nabca\nabcabca\n"]
    assert len(arriving(*pieces)) == 2
    with pytest.raises(ValueError, match="8 tokens in line 4 of `a pipe`"):
        arriving(b"a\n", pieces[1], refuses=True)
