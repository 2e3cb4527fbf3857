import signal
import warnings

import pytest
import typer
from typer.testing import CliRunner

from keras_transformer_runtime.command import make_app
from keras_transformer_runtime.commands.messages import (
    exits_on_interrupt,
    prints_warnings,
    with_option_names,
)

pytestmark = pytest.mark.once("torch")

COMMANDS = typer.main.get_command(make_app()).commands


@pytest.mark.parametrize(
    ("command", "message", "expected"),
    [
        (
            "translate",
            "`num_beams` must be at least 1; received `num_beams=0`.",
            "`--num-beams` must be at least 1; received `--num-beams 0`.",
        ),
        ("translate", '`too_long="empty"`', "`--too-long empty`"),
        ("translate", "with `overwrite=True`", "with `--overwrite`"),
        ("translate", "`overwrite=False`", "no `--overwrite`"),
        ("translate", "`source`: `target='a b'`", "`SOURCE`: `'a b'`"),
        ("export", "`num_hypotheses=3`", "`--num-hypotheses 3`"),
        ("export", "`filepath` must", "`FOLDER` must"),
        ("export", "`quantization=None`", "no `--quantization`"),
        ("evaluate", "`target` and `tokenize`", "`REFERENCES` and `--bleu-tokenize`"),
        ("train", "`train=['a', 'b c']`", "`--train a 'b c'`"),
        ("train", "Pass `r_drop`, not", "Pass `--r-drop`, not"),
        ("translate", "`model=1234567e123`", "`1234567e123`"),
        ("train", "`learning_rate=nan`", "`--learning-rate nan`"),
        ("inspect", "`num_beams=0` of `config.json`", "`num_beams=0` of `config.json`"),
    ],
)
def test_messages_name_options(command, message, expected):
    assert with_option_names(message, COMMANDS[command].params) == expected


def outcome(command):
    """Runs a command that ends with an interrupt; returns the code and the output."""
    stoppable = typer.Typer()
    stoppable.command()(exits_on_interrupt(command))
    result = CliRunner().invoke(stoppable, ["a"])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(("said", "line"), [((), "Stopped."), (("at 7",), "at 7")])
def test_an_interrupt_prints_one_line(said, line):
    def command(name: str) -> None:
        raise KeyboardInterrupt(*said)

    assert outcome(command) == (130, "", line + "\n")


def test_sigterm_stops_a_command_as_an_interrupt():
    def command(name: str) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as interrupt:
            raise type(interrupt)("at 7") from None

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert outcome(command) == (143, "", "at 7\n")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_command_that_ignores_sigterm():
    def command(name: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert outcome(command) == (0, "", "")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_warnings_are_printed():
    before, lines = warnings.showwarning, []
    with prints_warnings(lambda *line: lines.append(line)):
        warnings.simplefilter("default")
        warnings.warn("3 lines are empty", stacklevel=1)
    assert lines == [("warning", "3 lines are empty")]
    assert warnings.showwarning is before
