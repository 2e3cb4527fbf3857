"""Connections to a cluster of Ray."""

import contextlib
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any


def use_loopback() -> None:
    """Lets a cluster of Ray that this process starts listen on 127.0.0.1.

    It must be called before the import of Ray, which documents the environment variable
    for Windows and macOS. The replicas of Ray Serve listen on all addresses
    nevertheless.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@contextlib.contextmanager
def connection(**options: Any) -> Iterator[bool]:
    """Connects this process to a cluster of Ray; yields whether it was connected.

    The cluster is that of the environment variable `RAY_ADDRESS`, or a new one on this
    machine, which ends with the context.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        use_loopback()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield True
        return
    with tempfile.TemporaryDirectory(prefix="keras_transformer-") as folder:
        connect(address, folder, **options)
        try:
            yield False
        finally:
            ray.shutdown()


def connect(
    address: str | None,
    folder: str | os.PathLike,
    namespace: str | None = None,
    **options: Any,
) -> None:
    """Connects this process to a cluster of Ray, or starts one on this machine.

    The ports of Ray run code for everyone who has its token. Ray 2.60 and later require
    the token, unless the environment variable `RAY_AUTH_MODE` is `disabled`.
    """
    import ray

    local: dict[str, Any] = {} if address else {"include_dashboard": False, **options}
    with contextlib.chdir(folder), kept_sigterm_handler():
        ray.init(
            address=address or "local",
            namespace=namespace,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **local,
        )


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
