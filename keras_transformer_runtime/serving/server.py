"""Starts and stops the server."""

import asyncio
import contextlib
import errno
import functools
import logging
import math
import multiprocessing
import os
import pathlib
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.connections import MAX_CONNECTIONS, HTTPConfig
from keras_transformer_runtime.serving.protection import is_loopback
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import ServerOptions
from keras_transformer_runtime.serving.versions import check_versions

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait for the server to accept them
OTHER_FILES = 512  # than connections
# Of the time of cores, in microseconds: "200000 100000" is two cores.
CONTAINER_LIMIT = pathlib.Path("/sys/fs/cgroup/cpu.max")
METRICS_SECONDS = 1.0  # between updates of the metrics that other processes read


def serve(options: ServerOptions) -> None:
    """Serves models over HTTP until SIGTERM or Ctrl-C.

    The server logs its address when it accepts connections. `/ready` has status 200
    when every model has an available version. At the end, the server accepts no new
    connections and finishes the requests in progress.

    Args:
        options: `ServerOptions`.

    Raises:
        ValueError: if a model has no version to serve.
        OSError: if the port is in use.

    Example:

    ```python
    serve(read_server_options("serving.toml"))
    ```
    """
    check_versions(options.models)
    with _listening(options) as listener:
        application = create_application(options)  # raises the errors of the options
        _allow_files(MAX_CONNECTIONS + OTHER_FILES)
        configure_logging(options)
        _log_address(options, listener)
        if options.processes == 1:
            _run(HTTPConfig(lambda: application.asgi, options), listener)
        else:
            create = functools.partial(_create_in_process, options)
            _run_processes(HTTPConfig(create, options), listener)


def create_application(options: ServerOptions, load_first: bool = False) -> Application:
    """Returns the application of a server, which loads its models when it starts.

    Args:
        options: `ServerOptions`.
        load_first: bool, whether it accepts requests only after it has loaded them.
    """
    check_versions(options.models)
    threads = options.threads or max(1, _cores() // options.processes)
    models = {
        name: ServedModel(name, model, threads)
        for name, model in options.models.items()
    }

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if load_first:
            await asyncio.gather(*(model.refresh() for model in models.values()))
        watching = asyncio.gather(
            _watch_versions(models, options.poll_seconds), _update_metrics(application)
        )
        yield
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        for model in models.values():
            await model.unload_all()

    application = Application(models, options, lifespan)
    return application


def _cores() -> int:
    """Returns the number of cores that this process, or its container, may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = allowed or os.cpu_count() or 1
    try:
        quota, period = CONTAINER_LIMIT.read_text().split()
        return min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # not in a container, or "max"
        return cores


def _run(config: HTTPConfig, listener: socket.socket) -> None:
    """Runs the server in this process."""
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        # Before uvicorn handles the signals, and after it, when it raises them again.
        signal.signal(number, end)
    server.run(sockets=[listener])


def _run_processes(config: HTTPConfig, listener: socket.socket) -> None:
    """Runs the server in several processes, which share the port."""
    # Python does not import from the working folder when it starts them.
    os.environ["PYTHONSAFEPATH"] = "1"
    with tempfile.TemporaryDirectory(prefix="keras_transformer-") as folder:
        # Before the processes import prometheus_client, which reads it.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        _Processes(config, listener, pathlib.Path(folder)).run()


class _Processes(Multiprocess):
    """The processes of a server. One that has ended is replaced."""

    def __init__(
        self, config: HTTPConfig, listener: socket.socket, metrics: pathlib.Path
    ):
        super().__init__(config, [listener])
        self._metrics = metrics
        self._numbers: set[int | None] = set()

    def keep_subprocess_alive(self) -> None:
        known = self._numbers | {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        self._numbers = {process.pid for process in self.processes}
        for number in known - self._numbers:
            logger.warning("process %s has ended", number)
            mark_process_dead(number, f"{self._metrics}")

    def terminate_all(self) -> None:
        for listener in self.sockets:  # new connections are refused from now on
            listener.close()
        super().terminate_all()


def _create_in_process(options: ServerOptions) -> ASGIApp:
    """Returns the application in one of several processes."""
    configure_logging(options)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return create_application(options).asgi


def configure_logging(options: ServerOptions) -> None:
    """Writes the log to standard error."""
    process = "" if options.processes == 1 else " [%(process)d]"
    logging.basicConfig(
        level="INFO",
        format=f"%(asctime)s{process} %(levelname)s %(message)s",
        force=True,
    )


def _log_address(options: ServerOptions, listener: socket.socket) -> None:
    """Logs the address, and warns if it is open to everyone."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    logger.info("http://%s:%d", host, listener.getsockname()[1])
    is_open = not (is_loopback(options.host) or options.behind_proxy)
    if is_open and options.api_key is None:
        logger.warning(
            "everyone who can reach %s can use the server. Set `api_key`, use a "
            "reverse proxy and set `behind_proxy = true`, or listen on 127.0.0.1",
            options.host,
        )


def _allow_files(count: int) -> None:
    """Raises the limit of open files, which is often 1,024, as far as allowed."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        limit = max(soft, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _listening(options: ServerOptions) -> socket.socket:
    """Returns a socket that listens, so that a second server finds the port in use."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        address = f"{options.host}:{options.port}"
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"`port` must be free; another program listens on {address}. Choose "
                "another port."
            ) from None
        raise OSError(
            f"the server cannot listen on {address}: {error.strerror}"
        ) from None
    return listener


async def _watch_versions(models: dict[str, ServedModel], seconds: float) -> None:
    """Updates the versions of every model repeatedly, independently of the others."""

    async def update(model: ServedModel) -> None:
        while True:
            try:
                await model.refresh()
            except Exception:
                logger.exception("%s: the versions could not be updated", model.name)
            await asyncio.sleep(seconds)

    await asyncio.gather(*(update(model) for model in models.values()))


async def _update_metrics(application: Application) -> None:
    while True:
        application.update_metrics()
        await asyncio.sleep(METRICS_SECONDS)
