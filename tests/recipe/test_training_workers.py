"""Runs with several workers of Ray Train."""

import csv
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import keras_transformer as kt
from keras_transformer.recipe import Recipe, train

BACKEND = os.environ["KERAS_BACKEND"]
ROOT = pathlib.Path(kt.__file__).parent.parent
EPOCHS = 40  # The first worker is killed long before the last one.
OPTIONS = {
    "model": "causal",
    "length": 16,
    "epochs": EPOCHS,
    "num_layers": 1,
    "hidden_dim": 8,
    "intermediate_dim": 8,
    "num_heads": 2,
    "dropout": 0.0,  # Processes of PyTorch have other masks than one process.
    "tokenizer": "words",
    "average": EPOCHS,
    "export": False,
}
# Ray polls the workers, and waits for those whose peer has died.
IMPATIENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "JAX_DISTRIBUTED_SHUTDOWN_TIMEOUT_S": "1",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(rng.choice(list("abcdefgh"), 400)))
    return str(path)


def arguments(options):
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is False:
            yield f"--no-{name}"
        else:
            yield from (option, str(value))


def losses(folder):
    with open(folder / "history.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [int(row["epoch"]) for row in rows] == [*range(1, EPOCHS + 1)]
    return [[float(row[name]) for name in ("loss", "val_loss")] for row in rows]


def start(folder, text, *further):
    options = {"train": text, "valid": text, "output": folder.name, **OPTIONS}
    command = [sys.executable, "-m", "keras_transformer", "train"]
    return subprocess.Popen(
        [*command, *arguments(options), *further],
        cwd=folder.parent,
        env={**os.environ, **IMPATIENT, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_worker(process, folder):
    """Kills a worker when there is a checkpoint."""
    while process.poll() is None and not [*folder.glob("checkpoints/epoch-*.npz")]:
        time.sleep(0.05)
    for each in psutil.process_iter(["cmdline"]):
        name = " ".join(each.info["cmdline"] or ())
        if "RayTrainWorker" in name and str(folder.parent) == _environment(each):
            each.kill()
            return
    raise AssertionError("There is no worker to kill.")


def _environment(process):
    """The variable by which the workers of a test differ from others."""
    try:
        return process.environ().get("TEST_FOLDER", "")
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
def one(tmp_path_factory, text):
    """The losses of a run in this process."""
    folder = tmp_path_factory.mktemp("one") / "run"
    files = {"train": [text], "valid": [text], "output": str(folder)}
    train(Recipe(**files, **OPTIONS, verbose=0))
    return losses(folder)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has no workers")
def test_a_worker_that_dies_changes_nothing(one, tmp_path, text, monkeypatch):
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    folder = tmp_path / "several"
    process = start(folder, text, "--workers", "2")
    try:
        kill_worker(process, folder)
        output = process.communicate()[0]
    finally:
        process.kill()
    assert process.returncode == 0, output
    devices = " of 1 virtual devices" if BACKEND == "jax" else ""
    assert f"2 workers{devices} train on processors." in output
    assert output.count("A worker has stopped: ") == 1
    assert output.count(f"Epoch {EPOCHS}/{EPOCHS}") == 1
    np.testing.assert_allclose(losses(folder), one, rtol=1e-5)
    files = {"train": [text], "valid": [text], "output": str(folder)}
    complete = train(Recipe(**files, **OPTIONS, verbose=0))
    assert complete.model.num_layers == 1
    assert not (folder / "ray").exists()


@pytest.mark.slow
def test_a_run_on_several_devices(one, tmp_path, text):
    options = ["--devices", "2"]
    options += ["--model-parallel", "2"] * (BACKEND == "jax")
    process = start(tmp_path / "run", text, *options)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    is_torch = BACKEND == "torch"  # It has a process for each device.
    shared = "2 workers train" if is_torch else "2 virtual devices share one CPU"
    assert shared in output
    np.testing.assert_allclose(losses(tmp_path / "run"), one, rtol=1e-5)


@pytest.mark.once("torch")
def test_a_worker_of_torch_has_one_gpu(monkeypatch):
    from keras_transformer.recipe import workers

    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 8.0})
    recipe = Recipe(
        train=["a.tsv"], valid=["a.tsv"], output="run", workers=4, devices=2
    )
    assert workers.needs_workers(recipe)
    assert workers._resources_of_worker(recipe) == {"GPU": 1}


@pytest.mark.once("jax")
def test_too_few_accelerators(monkeypatch):
    from keras_transformer.recipe import workers

    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 4.0})
    recipe = Recipe(
        train=["a.tsv"], valid=["a.tsv"], output="run", workers=4, devices=2
    )
    with pytest.raises(ValueError, match="`workers=4`, `devices=2`, .* with 4 GPUs"):
        workers._resources_of_worker(recipe)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 8.0})
    assert workers._resources_of_worker(recipe) == {"GPU": 2}
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    assert workers._resources_of_worker(recipe) == {"CPU": 0.5}
