import pathlib
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from keras_transformer.backend import ray_start

pytestmark = pytest.mark.once("torch")


@pytest.fixture
def ray(monkeypatch):
    """A node and a module in the place of Ray's, with a list of what was called."""
    called = []

    class Node:
        def start_raylet(self):
            called.append("start_raylet")

    for name in ray_start._NOT_NEEDED:
        setattr(Node, name, lambda self, name=name: called.append(name))

    def get_node(gcs_address, node_id):
        called.append(node_id)
        return gcs_address

    class GcsClient:
        def __init__(self, address):
            assert address == "127.0.0.1:9"

        def get_all_node_info(self, timeout):
            called.append("get_all_node_info")
            return {"id": "node"} if called.count("get_all_node_info") > 2 else {}

    def popen(command, **options):
        called.append((command, options))

    services = SimpleNamespace(
        get_node=get_node, GcsClient=GcsClient, ConsolePopen=popen
    )
    monkeypatch.setitem(sys.modules, "ray._private.node", SimpleNamespace(Node=Node))
    monkeypatch.setitem(sys.modules, "ray._private.services", services)
    monkeypatch.setattr(ray_start, "_POLL_SECONDS", 0)
    return SimpleNamespace(Node=Node, services=services, called=called)


def start(ray):
    node = ray.Node()
    node.start_raylet()
    for name in ray_start._NOT_NEEDED:
        getattr(node, name)()


def test_processes_that_replicas_do_not_need_are_not_started(ray):
    with ray_start.few_processes():
        start(ray)
    assert ray.called == ["start_raylet"]
    start(ray)
    assert ray.called[1:] == ["start_raylet", *ray_start._NOT_NEEDED]


def test_the_node_is_asked_for_when_it_exists(ray):
    with ray_start.few_processes():
        assert ray.services.get_node("127.0.0.1:9", node_id="node") == "127.0.0.1:9"
    assert ray.called == [*["get_all_node_info"] * 3, "node"]


def test_the_wait_for_the_node_ends(ray, monkeypatch):
    monkeypatch.setattr(ray_start, "_WAIT_SECONDS", -1)
    with ray_start.few_processes():
        ray.services.get_node("127.0.0.1:9", "node")
    assert ray.called == ["get_all_node_info", "node"]


def test_the_methods_are_back_after_an_error(ray):
    before = dict(vars(ray.Node)), ray.services.get_node
    with pytest.raises(OSError), ray_start.few_processes():
        raise OSError
    assert (dict(vars(ray.Node)), ray.services.get_node) == before


def test_a_version_of_ray_that_is_not_known(ray, monkeypatch):
    del ray.Node.start_monitor, ray.services.get_node
    with ray_start.few_processes():
        ray.Node().start_log_monitor()
        assert not hasattr(ray.Node, "start_monitor")
        assert not hasattr(ray.services, "get_node")
    assert not ray.called
    for name in ("ray._private.node", "ray._private.services"):
        monkeypatch.setitem(sys.modules, name, None)
    with ray_start.few_processes():
        ray.Node().start_api_server()
    assert ray.called == ["start_api_server"]


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_sessions_of_the_processes(ray, monkeypatch, platform):
    """On macOS, Ray ends the process group of a process that has died."""
    monkeypatch.setattr(sys, "platform", platform)
    with ray_start.own_session():
        ray.services.ConsolePopen("gcs_server", env={})
    ray.services.ConsolePopen("raylet")
    is_own = {"start_new_session": True} if platform == "linux" else {}
    assert ray.called == [("gcs_server", {"env": {}, **is_own}), ("raylet", {})]


def test_a_version_of_ray_that_starts_processes_in_another_way(ray):
    del ray.services.ConsolePopen
    with ray_start.own_session():
        assert not hasattr(ray.services, "ConsolePopen")


def test_the_handler_of_sigterm():
    def handler(*_):
        raise KeyboardInterrupt

    def use_context():
        with ray_start.kept_sigterm_handler():
            return signal.getsignal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(OSError), ray_start.kept_sigterm_handler():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise OSError
        assert signal.getsignal(signal.SIGTERM) is handler
        with ThreadPoolExecutor(1) as threads:  # cannot set handlers
            assert threads.submit(use_context).result() is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_client_of_ray(ray):
    del ray.services.GcsClient
    with ray_start.few_processes():
        assert ray.services.get_node("127.0.0.1:9", "node") == "127.0.0.1:9"
    assert ray.called == ["node"]


def test_variables_of_the_user_take_precedence(monkeypatch):
    first, *others = ray_start._SETTINGS
    for name in others:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(first, "700")
    ray_start.use_fast_start()
    assert ray_start.os.environ[first] == "700"
    for name in others:
        assert ray_start.os.environ[name] == ray_start._SETTINGS[name]


def test_ray_has_the_names():
    """Ray does not document them. Without one of them, a server starts slowly."""
    node = pytest.importorskip("ray._private.node").Node
    assert all(hasattr(node, name) for name in ray_start._NOT_NEEDED)
    import ray
    from ray._private import services
    from ray.serve._private import constants

    assert hasattr(services, ray_start._GET_NODE)
    assert hasattr(services, ray_start._POPEN)
    folder = pathlib.Path(ray.__file__).parent
    programs = [folder / "_raylet.so", folder / "core/src/ray/raylet/raylet"]
    read = b"".join(map(pathlib.Path.read_bytes, programs))
    read += pathlib.Path(constants.__file__).read_bytes()
    names = [*ray_start._SETTINGS, "GcsClient", "get_all_node_info"]
    missing = [name for name in names if name.encode() not in read]
    assert not missing
