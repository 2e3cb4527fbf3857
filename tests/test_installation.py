"""The wheel and the source distribution, each installed in an empty environment.

pip downloads the dependencies: without a package index, the tests are skipped.
"""

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile

import pytest
from documented import PACKAGE, ROOT, write_toy_text

import keras_transformer

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# As in the environment of the tests: pip resolves other versions to builds with CUDA.
(TORCH,) = [
    requirement
    for requirement in PROJECT["optional-dependencies"]["test"]
    if requirement.startswith("torch==")
]
TOY_OPTIONS = {
    **{"vocabulary-size": 29, "max-length": 24, "epochs": 1, "average": 1},
    **{"cooldown": 0, "warmup-steps": 1, "num-beams": 1},
}


def run(*command, expected=0, cwd=None, backend="tensorflow"):
    """Runs a command that finds nothing outside its environment; returns its output."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.run(
        [*map(str, command)],
        **{"cwd": cwd, "env": {**environment, "KERAS_BACKEND": backend}},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True},
    )
    assert process.returncode == expected, process.stdout
    return process.stdout


@pytest.fixture(scope="module", autouse=True)
def package_index(tmp_path_factory):
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    download += ["--dest", tmp_path_factory.mktemp("index"), "namex"]
    if subprocess.run([*map(str, download)], capture_output=True).returncode:
        pytest.skip("pip reaches no package index")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributions")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "source": source}


def install(folder, *requirements):
    """Creates an environment; returns its folder of programs."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", *requirements)
    return programs


def test_the_wheel_has_all_files(distributions):
    files = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.*")}
    with zipfile.ZipFile(distributions["wheel"]) as content:
        missing = files - {*content.namelist()}
    assert not [name for name in missing if "__pycache__" not in name]


@pytest.mark.parametrize(
    ("backend", "form", "pins"), [("jax", "wheel", []), ("torch", "source", [TORCH])]
)
def test_without_tensorflow(backend, form, pins, distributions, tmp_path):
    write_toy_text(tmp_path)
    programs = install(tmp_path, f"{distributions[form]}[{backend}]", *pins)
    command = programs / "keras-transformer"
    elsewhere = {"cwd": tmp_path, "backend": backend}

    program = ROOT / "tests" / "installed" / "on_arrays.py"
    output = run(programs / "python", "-P", program, **elsewhere)
    assert f"{tmp_path}/environment/" in output
    assert output.endswith(f" works on {backend} without TensorFlow.\n")

    version = run(command, "--version", **elsewhere)
    assert version == f"keras-transformer {keras_transformer.__version__}\n"
    texts = ["--train", "train.en", "train.de", "--valid", "valid.en", "valid.de"]
    train = [command, "train", *texts, "--output", "runs/a"]
    error = run(*train, expected=1, **elsewhere)
    assert error.startswith("error: A training run requires the packages keras_nlp, ")
    assert 'To install: pip install "keras-nlp>=' in error
    assert not (tmp_path / "runs").exists()


def test_with_tensorflow(distributions, tmp_path):
    """Texts to a SavedModel and back to texts, by the command alone."""
    write_toy_text(tmp_path)
    programs = install(tmp_path, f"{distributions['wheel']}[tensorflow]")
    command = programs / "keras-transformer"
    texts = ["--train", "train.en", "train.de", "--valid", "valid.en", "valid.de"]
    options = [f"--{name}={value}" for name, value in TOY_OPTIONS.items()]
    train = [command, "train", *texts, *options, "--output", "runs/a"]
    output = run(*train, cwd=tmp_path)
    assert "13 sentences of the validation text:" in output
    figures = json.loads((tmp_path / "runs/a/figures.json").read_text())
    assert f"{'bleu':21}{figures['bleu']:8.2f}" in output
    assert (tmp_path / "runs/a/saved_model/1/saved_model.pb").exists()
    run(command, "translate", "runs/a", "valid.en", "output.de", cwd=tmp_path)
    assert len((tmp_path / "output.de").read_text("utf-8").splitlines()) == 13
