"""Training in several processes with `distribute`."""

import pytest
from child_process import figures_of

from keras_transformer.backend.processes import (
    count_processes,
    fail_together,
    greatest,
    is_first_process,
    of_first_process,
)

JAX = pytest.mark.once("jax")
# Groups of devices within a process, and across both.
GRIDS = ["model_parallel 2", "model_parallel 4"]


@pytest.fixture(scope="module")
def figures():
    return figures_of("processes.py")


@pytest.mark.slow
@JAX
@pytest.mark.parametrize("grid", GRIDS)
def test_two_processes_train_as_one_device(figures, grid):
    compared = figures["compared"][grid]
    assert compared["losses"] < 1e-6
    assert compared["resumed by one"] < 1e-6


@pytest.mark.slow
@JAX
@pytest.mark.parametrize("grid", GRIDS)
def test_the_first_process_writes_whole_files(figures, grid):
    compared = figures["compared"][grid]
    assert compared["files"] == ["epoch-0001.npz"]
    one_process, two_processes, saved = compared["ids"]
    assert one_process == two_processes == saved


@pytest.mark.slow
@JAX
def test_two_processes_resume_the_run_of_one(figures):
    assert figures["resumed by two"] < 1e-6


@pytest.mark.slow
@JAX
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unequal", "ValueError: All processes must train on equal batches"),
        ("devices", "ValueError: `devices` must be None or all 4"),
        ("folder", "ValueError: `folder` must be on a file system that all processes"),
    ],
)
def test_errors_are_those_of_all_processes(figures, name, message):
    for errors in figures["errors"]:
        assert errors[name].startswith(message)


@pytest.mark.slow
@JAX
def test_processes_fail_together(figures):
    other, failed = (errors["fails_in_one"] for errors in figures["errors"])
    assert other == "RuntimeError: Another process has failed. See its error."
    assert failed == "OSError: a full disk"


@pytest.mark.slow
@JAX
def test_a_signal_to_one_process_stops_both(figures):
    for code, files in figures["stopped"]:
        assert (code, files) == (143, ["epoch-0001.npz"])


@pytest.mark.once("torch")
def test_one_process_communicates_with_none():
    assert count_processes() == 1
    assert is_first_process()
    assert greatest([3, -1]) == [3, -1]
    assert of_first_process([0.1]) == [0.1]
    with pytest.raises(OSError, match="^a full disk$"):
        fail_together(_fails)()


def _fails():
    raise OSError("a full disk")
