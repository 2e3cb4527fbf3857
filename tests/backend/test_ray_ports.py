import sys
from types import SimpleNamespace

import pytest

from keras_transformer.backend import ray_ports

VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

pytestmark = pytest.mark.once("torch")


@pytest.fixture
def module(monkeypatch):
    """In the place of Ray's module. The variable is restored after the test."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    module = SimpleNamespace(add_port_to_grpc_server=lambda server, address: address)
    monkeypatch.setitem(sys.modules, "ray.serve._private.replica", module)
    return module


def test_a_local_cluster_listens_on_loopback(monkeypatch, module):
    ray_ports.use_loopback()
    assert ray_ports.os.environ[VARIABLE] == "0"
    assert ray_ports.use_loopback_in_replica()
    assert module.add_port_to_grpc_server("server", "[::]:0") == "127.0.0.1:0"
    assert module.add_port_to_grpc_server("server", "0.0.0.0:9") == "127.0.0.1:9"


@pytest.mark.parametrize("value", [None, "1"])
def test_another_cluster_listens_on_all_addresses(monkeypatch, module, value):
    """The user has set the variable, or a replica has joined a cluster of machines."""
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
        ray_ports.use_loopback()
    assert ray_ports.use_loopback_in_replica()
    assert module.add_port_to_grpc_server("server", "[::]:0") == "[::]:0"


def test_a_version_of_ray_that_is_not_known(monkeypatch, module):
    monkeypatch.setenv(VARIABLE, "0")
    del module.add_port_to_grpc_server
    assert not ray_ports.use_loopback_in_replica()
    monkeypatch.setitem(sys.modules, "ray.serve._private.replica", None)
    assert not ray_ports.use_loopback_in_replica()


def test_ray_reads_the_variable():
    """It is documented for Windows and macOS only."""
    constants = pytest.importorskip("ray._private.ray_constants")
    with open(constants.__file__) as file:
        assert f'"{VARIABLE}"' in file.read()
