"""A run that is killed several times has the result of an uninterrupted run."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from small_run import BATCHES, EPOCHS

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

SCRIPT = pathlib.Path(__file__).with_name("killed_runs.py")
KILLED = -9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def ends(folder):
    """Exit codes of the processes, by the place where they were killed."""
    process = subprocess.run(
        [sys.executable, SCRIPT, folder],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def losses(folder):
    """Epoch, batch, loss and perplexity of each step of each process."""
    logs = sorted(folder.glob("*.jsonl"))
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


def test_the_processes_were_killed(ends):
    assert ends.pop("whole") == ends.pop("last") == 0
    assert list(ends.values()) == 4 * [KILLED]


def test_every_loss_equals_that_of_the_uninterrupted_run(ends, folder):
    (whole,) = losses(folder / "whole")
    by_position = {(epoch, batch): values for epoch, batch, *values in whole}
    assert len(by_position) == EPOCHS * BATCHES
    processes = losses(folder / "killed")
    for epoch, batch, *values in (step for steps in processes for step in steps):
        np.testing.assert_allclose(values, by_position[epoch, batch], rtol=0, atol=1e-6)
    positions = {(step[0], step[1]) for steps in processes for step in steps}
    assert positions == by_position.keys()


def test_every_process_resumes_at_the_last_checkpoint(ends, folder):
    starts = [tuple(steps[0][:2]) for steps in losses(folder / "killed")]
    assert starts == [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2)]


def test_weights_equal_those_of_the_uninterrupted_run(ends, folder):
    whole, killed = (np.load(folder / n / "weights.npz") for n in ("whole", "killed"))
    for name in whole.files:
        np.testing.assert_allclose(killed[name], whole[name], rtol=0, atol=1e-6)


def test_unfinished_files_are_removed(ends, folder):
    names = {path.name for path in (folder / "killed/checkpoints").iterdir()}
    assert names == {path.name for path in (folder / "whole/checkpoints").iterdir()}
