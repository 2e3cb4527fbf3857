import subprocess
import sys
import time

import pytest

from keras_transformer.export import tensorflow_process
from keras_transformer.export.tensorflow_process import run_python

pytestmark = [pytest.mark.once("torch"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def process_of_its_own(monkeypatch):
    monkeypatch.setattr(tensorflow_process, "subprocess", subprocess)


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
        run_python("import time; time.sleep(60)", {})


# Without Keras, whose import takes long.
PARENT = f"""
import runpy, sys, types
module = types.SimpleNamespace(ExportableModel=None)
for name in ("keras", "keras_transformer", "keras_transformer.export.protocols"):
    sys.modules[name] = module
sys.modules["keras_transformer.export"] = module
names = runpy.run_path({tensorflow_process.__file__!r})
names["run_python"]({{code!r}}, {{{{}}}})
"""


def test_a_process_ends_with_its_parent(tmp_path):
    file = tmp_path / "times"
    code = "import time\nwhile True:\n    time.sleep(0.01)\n"
    code += f"    print(time.time(), file=open({str(file)!r}, 'a'))"
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(code=code)])
    try:
        _wait_until(lambda: _grows(file))
    finally:
        parent.kill()
        parent.wait()
    _wait_until(lambda: not _grows(file))


def _wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end


def _grows(file):
    before = file.exists() and file.stat().st_size
    time.sleep(0.5)
    return file.exists() and file.stat().st_size > before
