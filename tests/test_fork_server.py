"""A forked process against a process of Python's own."""

import os
import subprocess
import sys

import pytest
from fork_server import forked_python

pytestmark = pytest.mark.once

CODE = """
import atexit, os, sys, threading
atexit.register(print, "the end")
threading.Timer(0.01, print, ["a thread"]).start()
streams = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
print(__name__, sys.argv, sys.path, os.getcwd(), os.environ["NAME"], streams)
print(sys.stdin.read())
"""
ENDS = {
    "end": "",
    "message": "sys.exit('out of ink')",
    "code": "sys.exit(7)",
    "error": "1 / 0",
    "signal": "sys.stdout.flush(); os.kill(os.getpid(), 9)",
}


def outcome(python, arguments, folder):
    process = subprocess.run(
        [*python, *arguments],
        input="[1, 2]",
        cwd=folder,
        env={**os.environ, "NAME": "value"},
        capture_output=True,
        text=True,
    )
    last = process.stderr.splitlines()[-1:]
    return process.returncode, process.stdout, last


@pytest.mark.parametrize("options", [["-c"], ["-P", "-c"]], ids=" ".join)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_code(options, end, tmp_path):
    arguments = [*options, CODE + end, "word"]
    expected = outcome([sys.executable], arguments, tmp_path)
    assert "['-c', 'word']" in expected[1]
    assert outcome(forked_python("tensorflow"), arguments, tmp_path) == expected


@pytest.mark.parametrize("arguments", [["script.py", "word"], ["-m", "json.tool"]])
def test_scripts_and_modules(arguments, tmp_path):
    (tmp_path / "script.py").write_text(CODE)
    expected = outcome([sys.executable], arguments, tmp_path)
    assert expected[0] == 0
    assert outcome(forked_python("tensorflow"), arguments, tmp_path) == expected


def test_code_may_replace_its_standard_input(tmp_path):
    """The stream stays open, as that of Python, and no other file gets its number."""
    code = "import io, os, sys; sys.stdin = io.StringIO(); print(os.read(0, 3))"
    found = outcome(forked_python("tensorflow"), ["-c", code], tmp_path)
    assert found[:2] == (0, "b'[1,'\n")
