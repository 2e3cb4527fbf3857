"""The progress of long tasks."""

import io
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_transformer_runtime import display as module
from keras_transformer_runtime.display import Display, Stage, format_seconds

pytestmark = pytest.mark.once("torch")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Each call is later by `step` seconds."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def monotonic(self):
        self.now += self.step
        return self.now


@pytest.mark.parametrize(
    "seconds, text",
    [
        *((0, "0.0 s"), (3.21, "3.2 s"), (9.96, "10 s"), (99.4, "99 s")),
        *((99.5, "2 min"), (3569, "59 min"), (3600, "1 h 0 min"), (7530, "2 h 6 min")),
    ],
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("is_terminal, verbose", [(True, 1), (False, 2)])
def test_motion_requires_a_terminal(monkeypatch, is_terminal, verbose):
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else io.StringIO())
    assert Display().verbose == verbose
    assert Display(0).verbose == 0


class Output:
    """An output of a notebook cell, in place of a handle of IPython."""

    def __init__(self, data):
        self.texts, self.moves = [data["text/plain"]], threading.Event()

    def update(self, data, raw):
        self.texts.append(data["text/plain"])
        if "Reading" in self.texts[-1]:
            self.moves.set()


@pytest.fixture
def outputs(monkeypatch):
    """The outputs of the cell of a notebook in which the test runs."""
    outputs = []

    def display(data, raw, display_id):
        assert raw and display_id
        outputs.append(Output(data))
        return outputs[-1]

    def console(stderr=False, **options):
        if stderr:
            return SimpleNamespace(is_jupyter=True, is_terminal=False)
        return Console(**options)

    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(module, "Console", console)
    monkeypatch.setattr(module, "NOTEBOOK_SECONDS", 0.001)
    return outputs


def test_a_stage_in_a_notebook_is_one_output(outputs, capsys):
    display = Display()
    for _ in range(2):
        with display.stage("Reading the text", total=7) as stage:
            stage.done = 3
            for _ in range(2):  # The first one may have begun before.
                outputs[-1].moves.clear()
                assert outputs[-1].moves.wait(60)
    display.print("A printed line.")
    assert [output.texts[0] for output in outputs] == ["", ""]
    for output in outputs:
        assert any("Reading the text  42 %" in text for text in output.texts)
        assert re.fullmatch(r"Reading the text  \d\.\d s", output.texts[-1])
        assert not any(line.count("\n") or len(line) > 80 for line in output.texts)
    assert capsys.readouterr().out == "A printed line.\n"


def test_a_stopped_stage_in_a_notebook_leaves_an_empty_line(outputs, capsys):
    display = Display()
    with pytest.raises(ZeroDivisionError), display.stage("Dividing"):
        1 / 0  # noqa: B018
    assert outputs[0].texts[-1] == ""
    with display.motion(Stage("Reading the text")):
        assert outputs[0].moves.wait(60)
    display.print("The end.")
    assert [output.texts[-1] for output in outputs] == ["The end."]
    assert capsys.readouterr() == ("", "")


def test_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr(module, "time", Clock(2.5))
    with Display(2).stage("Reading the text"):
        assert capsys.readouterr().out == "Reading the text"
    assert capsys.readouterr().out == "  2.5 s\n"
    display = Display(2)
    with display.stage("Reading the text"):
        display.print("a line")
    assert capsys.readouterr().out == (
        "Reading the text\na line\nReading the text  2.5 s\n"
    )
    with pytest.raises(ZeroDivisionError), Display(2).stage("Dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().out == "Dividing\n"
    with Display(0).stage("Reading the text"):
        Display(0).print("a line")
    assert capsys.readouterr() == ("", "")


def test_the_line_with_motion_leaves_the_printed_lines(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    display = Display()
    with display.stage("Reading the text"):
        print("a warning")
    assert "Reading the text" in terminal.getvalue()
    lines = capsys.readouterr().out.splitlines()  # standard output is no terminal
    assert lines[0] == "a warning" and lines[1].startswith("Reading the text  ")
    assert terminal.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # shows the cursor


def drawn(stage, columns):
    file = io.StringIO()
    Console(file=file, width=columns, force_terminal=False).print(stage.line(columns))
    return file.getvalue().rstrip()


def test_the_line_fits_the_terminal():
    stage = Stage("Epoch 1000/1000", total=400, done=80)
    stage.details = ["2 h 34 min left", "loss 1.235", "123,456 tokens/s"]
    wide = drawn(stage, 80)
    assert (
        "Epoch 1000/1000  20 %  2 h 34 min left  loss 1.235  123,456 tokens/s" in wide
    )
    assert "━" in drawn(stage, 90)
    narrow = drawn(stage, 40)
    assert narrow.endswith("Epoch 1000/1000  20 %  2 h 34 min left")
    for columns in range(24, 100):
        line = drawn(stage, columns)
        assert "\n" not in line and len(line) <= columns


def test_a_stage_without_a_total_shows_its_duration(monkeypatch):
    monkeypatch.setattr(module, "time", Clock(2.5))
    stage = Stage("Validation")
    assert drawn(stage, 40).endswith("Validation  2.5 s")
    stage.begin("Validation", total=7, done=7)
    assert "Validation  100 %" in drawn(stage, 40)


def test_printed_lines_are_wrapped_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    line = "Epoch 1/3  loss 6.1, valid loss 5.2, bleu 0.1, 30 s, 2 min left"
    Display(1).print(f"{line}\nshort")
    assert capsys.readouterr().out == (
        "Epoch 1/3  loss 6.1, valid loss 5.2,\n    bleu 0.1, 30 s, 2 min left\nshort\n"
    )
    Display(2).print(line)  # a log file
    assert capsys.readouterr().out == f"{line}\n"
