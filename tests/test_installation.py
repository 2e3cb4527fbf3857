"""A wheel in an environment of its own."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from documented import PACKAGE, ROOT, write_toy_text

TOY_OPTIONS = {
    **{"vocabulary-size": 29, "max-length": 24, "epochs": 1, "average": 1},
    **{"cooldown": 0, "warmup-steps": 1, "num-beams": 1},
}


def run(*command, **options):
    process = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, **options
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
def wheel(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    run(*build, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    return wheel


@pytest.fixture
def environment(tmp_path, wheel):
    """An environment with the wheel, and with all packages around the tests.

    Lines of a `.pth` file are folders of packages. The `.pth` files in them, such as
    that of an editable installation of the library, have no effect.
    """
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet"]
    run(*pip, "install", "--no-deps", "--no-index", wheel)
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    pathlib.Path(own.strip(), "packages.pth").write_text("\n".join(sorted(paths)))
    return folder


@pytest.mark.once("torch")
def test_a_wheel_trains_in_another_folder(wheel, environment, tmp_path):
    files = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.*")}
    files = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as content:
        assert files <= {*content.namelist()}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    write_toy_text(folder)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    find = (
        "from importlib import util; print(util.find_spec('keras_transformer').origin)"
    )
    python = environment / "bin" / "python"
    origin = run(python, "-P", "-c", find, cwd=folder, env=clean)
    assert origin.startswith(str(environment))
    command = [environment / "bin" / "keras-transformer", "train", "--no-export"]
    command += ["--train", "train.en", "train.de", "--valid", "valid.en", "valid.de"]
    command += [f"--{name}={value}" for name, value in TOY_OPTIONS.items()]
    output = run(*command, "--output", "runs/a", cwd=folder, env=clean)
    assert "13 sentences of the validation text:" in output
    figures = json.loads((folder / "runs/a/figures.json").read_text())
    assert f"{'bleu':21}{figures['bleu']:8.2f}" in output
    assert (folder / "runs/a/model.keras").exists()
