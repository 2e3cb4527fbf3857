"""Training on several replicas and in several processes."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_transformer as kt
from keras_transformer.backend import distribution

ROOT = pathlib.Path(kt.__file__).parent.parent


def compiled():
    model = kt.Seq2Seq(
        num_layers=1,
        hidden_dim=4,
        intermediate_dim=4,
        num_heads=1,
        vocabulary_size=11,
    )
    model.compile("sgd", kt.LabelSmoothedCrossEntropy())
    return model


@pytest.fixture(scope="module")
def figures():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("`MirroredStrategy` belongs to TensorFlow")
    found = subprocess.run(
        [
            sys.executable,
            pathlib.Path(__file__).with_name("replicas.py"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loss", "r_drop_micro_batches"])
def test_two_replicas_train_as_one_device(figures, name):
    weights, logs = figures[name]
    assert weights < 1e-5
    assert logs < 1e-4


@pytest.mark.slow
def test_two_replicas_evaluate_as_one_device(figures):
    one, two = figures["evaluate"]
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
def test_an_update_is_skipped_on_both_replicas(figures):
    assert figures["steps"] == [2, 2]
    assert figures["skip"] < 1e-5


@pytest.mark.slow
def test_checkpoints_resume_on_replicas(figures):
    assert figures["resumed_steps"] == 6
    assert figures["resumed"] < 1e-6


@pytest.mark.slow
def test_each_iterator_of_the_data_is_used(figures):
    assert figures["epochs"] == 2  # One of `fit`, one of `evaluate`.


@pytest.mark.slow
def test_clipping_of_each_replica_is_refused(figures):
    assert "`global_clipnorm` must be None" in figures["clipping"]


@pytest.mark.parametrize(
    "name", ["MultiWorkerMirroredStrategy", "ParameterServerStrategyV2"]
)
def test_strategies_that_are_refused(monkeypatch, name):
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")

    class Model:
        distribute_strategy = type(name, (), {})()

    with pytest.raises(ValueError, match=name.removesuffix("V2")):
        distribution.check_distribution(Model())


def test_several_processes_of_torch_are_refused(monkeypatch):
    if keras.backend.backend() != "torch":
        pytest.skip("`torch.distributed` belongs to PyTorch")
    import torch

    model = compiled()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match="torch.distributed.* with 2 processes"):
            train(None, None)


def test_shapes_without_a_batch_are_none_if_unknown():
    assert distribution._batch_of(object()) is None  # Keras then takes a batch.
