"""A run that is killed several times has the result of an uninterrupted run."""

import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from small_run import BATCHES, EPOCHS

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

SCRIPT = pathlib.Path(__file__).with_name("killed_runs.py")
ENDS = {
    "in_a_step": -signal.SIGKILL,
    "during_a_write": -signal.SIGXFSZ,
    "before_renaming": -signal.SIGKILL,
    "after_renaming": -signal.SIGKILL,
    "nowhere": 0,
}


def run(folder, *places):
    """Returns the exit codes of the processes that are killed in these places."""
    folder.mkdir()
    arguments = ([folder, str(n), place] for n, place in enumerate(places))
    return [subprocess.call([sys.executable, SCRIPT, *each]) for each in arguments]


def losses(folder):
    """Epoch, batch, loss and perplexity of each step of each process."""
    logs = sorted(folder.glob("*.jsonl"))
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


def test_a_run_that_is_killed_several_times(tmp_path):
    one, other = tmp_path / "whole", tmp_path / "killed"
    assert run(one, "nowhere") == [0]
    assert run(other, *ENDS) == [*ENDS.values()]
    (whole,), processes = losses(one), losses(other)
    starts = [tuple(steps[0][:2]) for steps in processes]
    assert starts == [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2)]
    by_position = {(epoch, batch): values for epoch, batch, *values in whole}
    assert len(by_position) == EPOCHS * BATCHES
    steps = [step for steps in processes for step in steps]
    assert {(epoch, batch) for epoch, batch, *_ in steps} == by_position.keys()
    for epoch, batch, *values in steps:
        np.testing.assert_allclose(values, by_position[epoch, batch], rtol=0, atol=1e-6)
    expected, found = (np.load(each / "weights.npz") for each in (one, other))
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
    # No unfinished file is left.
    files = [sorted((each / "checkpoints").iterdir()) for each in (one, other)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
