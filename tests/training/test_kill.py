"""A run that is killed again and again gives what one that is left alone gives."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from small_run import BATCHES, EPOCHS

SCRIPT = pathlib.Path(__file__).with_name("killed_runs.py")
KILLED = -9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def ends(folder):
    """How the processes ended, by where they were killed."""
    cache = {  # of what JAX compiles, from one life to the next
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    process = subprocess.run(
        [sys.executable, SCRIPT, folder],
        capture_output=True,
        text=True,
        env={**os.environ, **cache},
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def losses(folder):
    """Epoch, batch, loss and perplexity of each step, life after life."""
    lives = sorted(folder.glob("*.jsonl"))
    return [
        [json.loads(line) for line in life.read_text().splitlines()] for life in lives
    ]


def test_the_processes_ended_as_they_should(ends):
    assert ends.pop("whole") == ends.pop("last") == 0
    assert list(ends.values()) == 4 * [KILLED]


def test_every_loss_is_that_of_the_uninterrupted_run(ends, folder):
    (whole,) = losses(folder / "whole")
    by_position = {(epoch, batch): values for epoch, batch, *values in whole}
    assert len(by_position) == EPOCHS * BATCHES
    lives = losses(folder / "killed")
    for epoch, batch, *values in (step for life in lives for step in life):
        np.testing.assert_allclose(values, by_position[epoch, batch], rtol=0, atol=1e-6)
    steps = {(epoch, batch) for life in lives for epoch, batch, *_ in life}
    assert steps == by_position.keys()


def test_every_life_goes_on_where_the_last_checkpoint_was(ends, folder):
    starts = [tuple(life[0][:2]) for life in losses(folder / "killed")]
    assert starts == [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2)]


def test_weights_are_those_of_the_uninterrupted_run(ends, folder):
    whole, killed = (np.load(folder / n / "weights.npz") for n in ("whole", "killed"))
    for name in whole.files:
        np.testing.assert_allclose(killed[name], whole[name], rtol=0, atol=1e-6)


def test_nothing_unfinished_is_left(ends, folder):
    names = {path.name for path in (folder / "killed/checkpoints").iterdir()}
    assert names == {path.name for path in (folder / "whole/checkpoints").iterdir()}
