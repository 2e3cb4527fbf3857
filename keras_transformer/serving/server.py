"""Starts and stops a server."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from keras_transformer.backend.ray_connection import use_loopback
from keras_transformer.serving.application import Application
from keras_transformer.serving.batching import ABANDONED_SECONDS
from keras_transformer.serving.connections import HTTPConfig, HTTPServer
from keras_transformer.serving.served_model import ServedModel
from keras_transformer.serving.server_options import ModelOptions, ServerOptions
from keras_transformer.serving.versions import check_versions, selected_versions

if TYPE_CHECKING:
    from keras_transformer.serving.cluster import Cluster

logger = logging.getLogger(__name__)


def serve(options: ServerOptions) -> None:
    """Serves models over HTTP until SIGTERM or Ctrl-C.

    The server logs its address when it responds at that address. `/ready` has status
    200 when every model has an available version. At the end, the server accepts no new
    requests, finishes those in progress, and stops its replicas.

    Args:
        options: `ServerOptions`.

    Raises:
        ValueError: if a model has no version to serve.
        OSError: if the port is in use.
        ConnectionError: if no Ray cluster responds at `options.address`.

    Example:

    ```python
    serve(read_server_options("serving.toml"))
    ```
    """
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    check_versions(options.models)
    with _listening(options) as listener:
        cluster = _start_cluster(options)
        models = {
            name: ServedModel(name, model, cluster)
            for name, model in options.models.items()
        }

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            watching = asyncio.create_task(
                _watch_versions(models, options.poll_seconds)
            )
            yield
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            for model in models.values():
                await model.unload_all()
            await cluster.stop()

        application = Application(models, options, lifespan)
        server = HTTPServer(HTTPConfig(application.asgi, options))
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn handles the signal and then raises it again, which would end
            # the process with an error.
            signal.signal(number, lambda *_: None)
        server.run(sockets=[listener])


def _start_cluster(options: ServerOptions) -> "Cluster":
    logger.info("%s Ray", "connecting to" if options.address else "starting")
    if options.address is None:
        use_loopback()
    from keras_transformer.serving.cluster import Cluster  # imports Ray

    return Cluster(
        options.address,
        _cpus(options),
        options.timeout_seconds + ABANDONED_SECONDS,
    )


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


def _cpus(options: ServerOptions) -> int:
    """Returns the number of cores for the replicas of old and new versions."""
    required = sum(
        model.cpus * max(model.replicas, model.max_replicas or 0) * _versions(model)
        for model in options.models.values()
    )
    return max(os.cpu_count() or 1, 2 * required)


def _versions(model: ModelOptions) -> int:
    """Returns the number of versions served at a time.

    With `versions="all"` it is the number of versions at the start of the server.
    """
    if isinstance(model.versions, str):
        return max(1, len(selected_versions(model)))
    return len(model.versions)


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
