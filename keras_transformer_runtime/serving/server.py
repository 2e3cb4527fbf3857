"""Starts and stops the server."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.connections import HTTPConfig
from keras_transformer_runtime.serving.protection import is_loopback
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import ServerOptions
from keras_transformer_runtime.serving.versions import check_versions

logger = logging.getLogger(__name__)


def serve(options: ServerOptions) -> None:
    """Serves models over HTTP until SIGTERM or Ctrl-C.

    The server logs its address when it responds at that address. `/ready` has status
    200 when every model has an available version. At the end, the server accepts no new
    requests and finishes those in progress.

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
        port = listener.getsockname()[1]
        config = HTTPConfig(functools.partial(_application, options, port), options)
        if options.processes == 1:
            for number in (signal.SIGINT, signal.SIGTERM):
                # uvicorn handles the signal and then raises it again, which would end
                # the process with an error.
                signal.signal(number, lambda *_: None)
            uvicorn.Server(config).run(sockets=[listener])
        else:
            # Before the processes import prometheus_client, which reads it.
            with tempfile.TemporaryDirectory(prefix="keras_transformer-") as folder:
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
                Multiprocess(config, sockets=[listener]).run()


def create_application(options: ServerOptions) -> Application:
    """Returns the application of a server, which loads its models when it starts."""
    check_versions(options.models)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = cores or os.cpu_count() or 1
    threads = options.threads or max(1, cores // options.processes)
    models = {
        name: ServedModel(name, model, threads)
        for name, model in options.models.items()
    }

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(_watch_versions(models, options.poll_seconds))
        yield
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        for model in models.values():
            await model.unload_all()

    return Application(models, options, lifespan)


def _application(options: ServerOptions, port: int) -> ASGIApp:
    """Returns the application in a process of the server, which logs its address."""
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    host = f"[{options.host}]" if ":" in options.host else options.host
    logger.info("http://%s:%d", host, port)
    is_open = not (is_loopback(options.host) or options.behind_proxy)
    if is_open and options.api_key is None:
        logger.warning(
            "everyone who can reach %s can use the server. Set `api_key`, use a "
            "reverse proxy and set `behind_proxy = true`, or listen on 127.0.0.1",
            options.host,
        )
    return create_application(options).asgi


def _listening(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"`port` must be free; the server cannot listen on "
            f"{options.host}:{options.port} ({error.strerror}). Choose another port."
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
