"""The log of TensorFlow while the command imports it."""

import contextlib
import os
import subprocess
import sys

import pytest

from keras_transformer.command_line import startup

pytestmark = pytest.mark.once("torch")

LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written",
    "I0000 00:00:1795611146.112441   24207 cudart_stub.cc:31] Could not find cuda",
    "W0000 00:00:1795611146.112441   24207 guard.cc:7] This is slow.",
    "F0000 00:00:1795611146.112441   24207 guard.cc:8] This machine lacks AVX.",
]
TEXT = "".join(f"{line}\n" for line in LINES)


@pytest.mark.parametrize(
    ("ending", "code"), [("pass", 0), ("os.abort()", -6), ("raise SystemExit(3)", 3)]
)
def test_only_the_log_is_hidden(ending, code):
    program = f"""
import os
import runpy

startup = runpy.run_path({startup.__file__!r})
with startup["_filtered_stderr"]():
    os.write(2, {TEXT!r}.encode())
    {ending}
os.write(2, b"I0000 after the import\\n")
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert process.returncode == code
    after = ["I0000 after the import"] if code == 0 else []
    assert sorted(process.stderr.splitlines()) == sorted([*after, *LINES[2:]])


@pytest.mark.parametrize(("level", "expected"), [(None, "3"), ("2", "2"), ("0", "0")])
def test_the_log_level(level, expected, monkeypatch):
    filtered, imported = [], []

    @contextlib.contextmanager
    def filtered_stderr():
        filtered.append(True)
        yield

    monkeypatch.setattr(startup, "_filtered_stderr", filtered_stderr)
    monkeypatch.setattr("importlib.import_module", imported.append)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    startup.import_keras_quietly()
    assert not filtered and not imported  # Keras is imported already.
    monkeypatch.delitem(sys.modules, "keras")
    startup.import_keras_quietly()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == expected
    assert len(filtered) == (expected != "0")
    assert bool(imported) == bool(filtered)
