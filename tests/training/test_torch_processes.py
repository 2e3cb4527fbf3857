"""Training in several processes of PyTorch with `distribute`."""

import pytest
from child_process import figures_of

import keras_transformer as kt

pytestmark = pytest.mark.once("torch")


@pytest.fixture(scope="module")
def figures():
    return figures_of("torch_processes.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["plain", "clipped", "micro_batches", "compiled", "keras_metric"]
)
def test_two_processes_train_as_one(figures, name):
    assert max(figures["differences"][name]) < 1e-5
    assert all(equal[name] for equal in figures["equal"])


@pytest.mark.slow
def test_runs_are_resumed_by_another_number_of_processes(figures):
    assert figures["resumed by one"] < 1e-5
    assert max(figures["resumed by two"]) < 1e-5


@pytest.mark.slow
def test_the_first_process_writes_files_that_one_process_reads(figures):
    assert figures["files"] == ["epoch-0001.npz", "epoch-0002.npz"]
    first, second, saved = figures["ids"]
    assert first == second == saved
    assert figures["devices"] == [["cpu:0", "cpu:1"]] * 2


@pytest.mark.slow
def test_methods_that_write_several_files(figures):
    assert figures["presets"] == ["after", "preset", "preset 2"]


@pytest.mark.slow
def test_callbacks_of_all_processes_have_equal_logs(figures):
    first, second = figures["val_losses"]
    assert len(first) == 2
    assert first == second


@pytest.mark.slow
def test_processes_have_different_masks_and_then_equal_generators(figures):
    (first, first_after), (second, second_after) = figures["masks"]
    for one, other in zip(first, second, strict=True):
        assert one != other
    assert first_after == second_after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unequal", "ValueError: All processes must train on equal batches"),
        ("devices", "ValueError: `devices` must be None or the number of processes"),
        ("model_parallel", "ValueError: `model_parallel` above 1 must be used on JAX"),
        ("loss", "ValueError: `loss` must be a mean over the tokens without"),
        ("weighted_loss", "ValueError: `loss` must be a mean over the tokens without"),
        ("classifier", "ValueError: `TextClassifier` trains in one process"),
        ("folder", "ValueError: `folder` must be on a file system that all processes"),
    ],
)
def test_errors_are_those_of_all_processes(figures, name, message):
    for errors in figures["errors"]:
        assert errors[name].startswith(message)


@pytest.mark.slow
def test_processes_fail_together(figures):
    other, failed = (errors["fails_in_one"] for errors in figures["errors"])
    assert other == "RuntimeError: Another process has failed. See its error."
    assert failed == "OSError: a full disk"


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both(figures):
    for code, files in figures["stopped"]:
        assert (code, files) == (143, ["epoch-0001.npz"])


def test_a_program_without_processes_has_one_device():
    with kt.distribute() as devices:
        assert devices == ["cpu:0"]
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2"):
        kt.distribute(2).__enter__()
