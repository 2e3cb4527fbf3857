"""Connections to Ray, whose ports run code for everyone who can reach them."""

import contextlib
import importlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from keras_transformer.backend.ray_start import kept_sigterm_handler, own_session

# Ray reads this variable, which it has for Windows and macOS, at its import. At "0" its
# processes listen on the loopback address.
_ON_ALL_ADDRESSES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# The module that starts the gRPC server of a replica of Ray Serve, and the function by
# which it opens the port. It listens on all addresses, for any value of the variable.
_REPLICA = "ray.serve._private.replica"
_OPEN_PORT = "add_port_to_grpc_server"


def use_loopback() -> None:
    """Lets a local cluster of Ray listen on 127.0.0.1.

    It must be called before the import of Ray. The environment variable
    `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER` takes precedence. The processes of the cluster
    inherit it.
    """
    os.environ.setdefault(_ON_ALL_ADDRESSES, "0")


def use_loopback_in_replica() -> bool:
    """Lets this replica listen on 127.0.0.1, if its cluster does.

    Returns:
        `False` if the replica will listen on all addresses, because the module of Ray
        has changed.
    """
    if os.environ.get(_ON_ALL_ADDRESSES) != "0":
        return True
    try:
        module = importlib.import_module(_REPLICA)
        open_port = getattr(module, _OPEN_PORT)
    except (ImportError, AttributeError):
        return False

    def open_local_port(server: object, address: str) -> object:
        return open_port(server, "127.0.0.1:" + address.rpartition(":")[2])

    setattr(module, _OPEN_PORT, open_local_port)
    return True


@contextlib.contextmanager
def connection() -> Iterator[bool]:
    """Connects this process to a cluster of Ray, unless it is connected.

    The cluster is that of the environment variable `RAY_ADDRESS`, or a new one on this
    machine, which listens on 127.0.0.1 and ends with the context.

    Yields:
        bool, whether the process is connected after the context as well.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        use_loopback()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield True
        return
    local: dict[str, Any] = {} if address else {"include_dashboard": False}
    with tempfile.TemporaryDirectory(prefix="keras_transformer-") as empty:
        # Ray puts the working folder first on the path of modules of its processes.
        with contextlib.chdir(empty), own_session(), kept_sigterm_handler():
            ray.init(
                address=address or "local",
                logging_level=logging.ERROR,
                log_to_driver=False,
                **local,
            )
        try:
            yield False
        finally:
            ray.shutdown()
