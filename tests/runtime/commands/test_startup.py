"""The log of TensorFlow while the command imports it."""

import os
import subprocess
import sys
import threading

import pytest

from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.tensorflow_import import without_log

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written",
    "I0000 00:00:1795611146.112441   24207 cudart_stub.cc:31] Could not find cuda",
    "W0000 00:00:1795611146.112441   24207 guard.cc:7] This is slow.",
    "F0000 00:00:1795611146.112441   24207 guard.cc:8] This machine lacks AVX.",
]
PROGRAM = """
import os
from keras_transformer_runtime.tensorflow_import import without_log

with without_log():
    os.write(2, os.environ["LINES"].encode())
    {ending}
os.write(2, b"I0000 after the import\\n")
"""


@pytest.mark.parametrize(
    ("ending", "code", "after"),
    [("pass", 0, ["I0000 after the import"]), ("raise SystemExit(3)", 3, [])],
)
def test_only_the_log_is_hidden(ending, code, after):
    text = "".join(f"{line}\n" for line in LINES)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ending=ending)],
        capture_output=True,
        text=True,
        env={**os.environ, "LINES": text},
    )
    assert process.returncode == code
    assert process.stderr.splitlines() == [*LINES[2:], *after]


@pytest.mark.parametrize(("level", "expected"), [(None, "3"), ("2", "2"), ("0", "0")])
def test_the_log_level(level, expected, monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    import_keras_quietly()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == expected
    with without_log():
        os.write(2, LINES[1].encode())
    assert bool(capfd.readouterr().err) == (expected == "0")


def test_threads_do_not_lose_standard_error(monkeypatch, capfd):
    """Models of a server import TensorFlow in several threads."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    entered = threading.Event()

    def import_again():
        with without_log():
            entered.set()

    thread = threading.Thread(target=import_again)
    with without_log():
        thread.start()
        assert not entered.wait(0.2)
    thread.join()
    os.write(2, b"a later line")
    assert entered.is_set() and capfd.readouterr().err == "a later line"
