import os
import pathlib
import signal
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_transformer.backend import ray_connection

pytestmark = pytest.mark.once("torch")

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@pytest.fixture
def ray(monkeypatch):
    """A module in the place of Ray, which records what it is asked for."""
    for name in ("RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED", LOOPBACK):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    calls = []

    def init(**options):
        calls.append(options)
        assert not [*pathlib.Path.cwd().iterdir()]  # No module of the user is there.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    module = types.SimpleNamespace(
        init=init,
        shutdown=lambda: calls.append("shutdown"),
        is_initialized=lambda: bool(calls) and calls[-1] != "shutdown",
        calls=calls,
    )
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


def test_a_cluster_on_this_machine_ends_with_the_context(ray):
    before, folder = signal.getsignal(signal.SIGTERM), os.getcwd()
    with ray_connection.connection(num_cpus=3) as remains:
        assert not remains
        assert signal.getsignal(signal.SIGTERM) == before and os.getcwd() == folder
        with ray_connection.connection() as inner_remains:
            assert inner_remains
    (options, end) = ray.calls
    assert (options["address"], options["num_cpus"]) == ("local", 3)
    assert options["include_dashboard"] is False
    assert end == "shutdown"
    assert os.environ[LOOPBACK] == "0"


def test_the_cluster_of_the_variable(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    with ray_connection.connection(num_cpus=3):
        pass
    options = ray.calls[0]
    assert options["address"] == "10.0.0.5:6379"
    assert not {"num_cpus", "include_dashboard"} & options.keys()
    assert LOOPBACK not in os.environ


def test_the_variable_of_the_user_takes_precedence(ray, monkeypatch):
    monkeypatch.setenv(LOOPBACK, "1")
    ray_connection.use_loopback()
    assert os.environ[LOOPBACK] == "1"


def test_the_handler_of_sigterm():
    def handler(*_):
        raise KeyboardInterrupt

    def use_context():
        with ray_connection.kept_sigterm_handler():
            return signal.getsignal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(OSError), ray_connection.kept_sigterm_handler():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise OSError
        assert signal.getsignal(signal.SIGTERM) is handler
        with ThreadPoolExecutor(1) as threads:  # cannot set handlers
            assert threads.submit(use_context).result() is handler
    finally:
        signal.signal(signal.SIGTERM, before)
