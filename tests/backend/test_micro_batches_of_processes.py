"""Micro-batches do not add the gradients of processes, so they refuse several."""

import os

import pytest

from keras_transformer.backend.micro_batches import _check_one_process

pytestmark = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="processes of PyTorch"
)


def test_several_processes_of_torch(monkeypatch):
    from torch import distributed

    _check_one_process(3)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    _check_one_process(3)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="received `micro_batches=3` in 2 processes"):
        _check_one_process(3)
