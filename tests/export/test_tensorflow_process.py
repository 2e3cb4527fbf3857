import os
import pathlib
import subprocess
import sys

import pytest

from keras_transformer.export import tensorflow_process
from keras_transformer.export.tensorflow_process import run_python

pytestmark = [pytest.mark.once("torch"), pytest.mark.slow]


def test_the_error_of_a_process_is_quoted():
    assert run_python("print(input())", "out of ink") == '"out of ink"\n'
    message = "child process .* end of its error output: out of ink"
    with pytest.raises(RuntimeError, match=message):
        run_python("raise SystemExit('out of ink')", {})


def test_files_of_the_working_folder_are_not_run(tmp_path, monkeypatch):
    for name in ("json", "base64", "io", "threading", "sitecustomize", "new_module"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'run: {__file__}')")
    monkeypatch.chdir(tmp_path)
    code = "import base64, json, importlib.util; print(json.__file__)\n"
    code += "print(importlib.util.find_spec('new_module'))"
    assert run_python(code, {}).split() == [sys.modules["json"].__file__, "None"]


def test_a_process_finds_the_modules_of_its_parent(tmp_path, monkeypatch):
    """After those that are installed."""
    for folder, name in (("path", "at_path"), ("parent", "of_parent")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").touch()
    (tmp_path / "parent/json.py").write_text("raise SystemExit('run')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.syspath_prepend(str(tmp_path / "parent"))
    run_python("import at_path, json, of_parent", {})


def test_a_process_has_a_limited_time(monkeypatch):
    monkeypatch.setattr(tensorflow_process, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match="must end within 0 s; it did not"):
        run_python("import threading; threading.Event().wait()", {})


def test_a_process_ends_with_its_parent(tmp_path):
    """The end of the child closes the pipe that it writes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = f"file = open({str(pipe)!r}, 'w'); print('started', file=file, flush=True)"
    child += "; import threading; threading.Event().wait()"
    code = "from keras_transformer.export.tensorflow_process import run_python\n"
    code += f"run_python({child!r}, {{}})"
    folder = pathlib.Path(tensorflow_process.__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=folder)
    try:
        with pipe.open() as lines:
            assert lines.readline() == "started\n"
            parent.kill()
            assert lines.read() == ""
    finally:
        parent.kill()
        parent.wait()
