"""A local cluster of Ray, without its unneeded processes and waits."""

import contextlib
import functools
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

# The processes of Ray read these variables.
_SETTINGS = {
    # The node connects to its object store as soon as it has started that. If it is too
    # early, it tries again: after a second by default, for 10 seconds.
    "RAY_raylet_client_connect_timeout_milliseconds": "50",
    "RAY_raylet_client_num_connect_attempts": "200",
    # The first workers import Ray Serve before Ray knows what they will run.
    "RAY_preload_python_modules": "ray.serve",
    # A process that loses the connection to the control server of Ray waits for it and
    # then ends, after 60 seconds by default. A local cluster never starts it again.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # Ray searches the objects of a replica for garbage before the replica is ready.
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "0",
}
_POLL_SECONDS = 0.02
_WAIT_SECONDS = 30.0

# The methods of Ray's node that start the server of the dashboard, for which `ray.init`
# waits, the autoscaler of machines, and the process that sends logs to `ray.init`.
_NODE = "ray._private.node"
_NOT_NEEDED = ("start_api_server", "start_monitor", "start_log_monitor")
# The function by which `ray.init` gets the node. It waits for it in steps of a second.
_SERVICES = "ray._private.services"
_GET_NODE = "get_node"
# The class with which Ray starts its processes.
_POPEN = "ConsolePopen"


def use_fast_start() -> None:
    """Sets environment variables that shorten the waits of a local cluster of Ray.

    It must be called before the import of Ray. The variables that the user has set take
    precedence. The processes of the cluster inherit them.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def few_processes() -> Iterator[None]:
    """Lets `ray.init` start only those processes of Ray that replicas need.

    Has no effect on a cluster that exists. A version of Ray that has other methods
    starts all its processes.
    """
    with contextlib.ExitStack() as stack:
        node = getattr(_module(_NODE), "Node", None)
        for name in _NOT_NEEDED:
            stack.enter_context(_replaced(node, name, _start_nothing))
        services = _module(_SERVICES)
        get_node: Any = getattr(services, _GET_NODE, None)

        def get_node_at_once(
            gcs_address: str, *args: object, **kwargs: object
        ) -> object:
            with contextlib.suppress(Exception):  # `get_node` waits as well
                _wait_for_node(services.GcsClient(address=gcs_address))
            return get_node(gcs_address, *args, **kwargs)

        stack.enter_context(_replaced(services, _GET_NODE, get_node_at_once))
        yield


@contextlib.contextmanager
def own_session() -> Iterator[None]:
    """Lets `ray.init` start the processes of Ray in sessions of their own on Linux.

    A signal to the process group of this process does not reach them, so that it can
    finish its work with them. Elsewhere, Ray needs the process group to end its
    processes when this process dies.
    """
    services = _module(_SERVICES)
    popen: Any = getattr(services, _POPEN, None)
    if sys.platform != "linux" or popen is None:
        yield
        return
    start = functools.partial(popen, start_new_session=True)
    with _replaced(services, _POPEN, start):
        yield


@contextlib.contextmanager
def kept_sigterm_handler() -> Iterator[None]:
    """Restores the handler of SIGTERM, which `ray.init` replaces.

    With the handler of Ray, SIGTERM ends the process without an exception. Threads
    cannot set handlers, so the context has no effect in them.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _start_nothing(*args: object, **kwargs: object) -> None:
    """In the place of the methods `_NOT_NEEDED`."""


def _wait_for_node(client: Any) -> None:
    end = time.monotonic() + _WAIT_SECONDS
    while not client.get_all_node_info(timeout=_WAIT_SECONDS):
        if time.monotonic() > end:
            return
        time.sleep(_POLL_SECONDS)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: object) -> Iterator[None]:
    """Replaces an attribute of a module or class, if it has the attribute."""
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
