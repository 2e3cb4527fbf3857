"""Runs a server until it is told to stop."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from keras_transformer.serving.application import Application
from keras_transformer.serving.cluster import Cluster
from keras_transformer.serving.models import Model
from keras_transformer.serving.options import ModelOptions, ServerOptions
from keras_transformer.serving.versions import wanted_versions

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 2048


def serve(options: ServerOptions) -> None:
    """Serves models over HTTP until SIGTERM or Ctrl-C.

    It listens at once; `/ready` answers 200 when every model has a version that
    answers. At the end it takes no new requests, answers those it has, and stops its
    replicas.

    Args:
        options: `ServerOptions`.

    Raises:
        OSError: if the port is taken.
        ConnectionError: if there is no Ray cluster at `options.address`.

    Example:

    ```python
    serve(read_options("serving.toml"))
    ```
    """
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    with _listening(options) as listener:
        port = listener.getsockname()[1]
        logger.info("http://%s:%d", options.host, port)
        cluster = Cluster(options.address, _cpus(options), options.cache)
        models = {
            name: Model(name, model, cluster) for name, model in options.models.items()
        }

        @contextlib.asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            watching = asyncio.create_task(_watch(models, options.poll_seconds))
            yield
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            for model in models.values():
                await model.unload_all()
            await cluster.stop()

        application = Application(models, options, lifespan)
        config = uvicorn.Config(
            application.asgi,
            log_level="warning",
            access_log=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=math.ceil(options.timeout_seconds),
            server_header=False,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn ends by a signal, and then sends it again.
            signal.signal(number, lambda *_: None)
        uvicorn.Server(config).run(sockets=[listener])


def _listening(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"`port`: {options.host}:{options.port} cannot be listened at "
            f"({error.strerror}); choose another one."
        ) from None
    return listener


def _cpus(options: ServerOptions) -> int:
    """Room for every version's replicas twice: old versions beside new ones."""
    needed = sum(
        model.cpus * max(model.replicas, model.max_replicas or 0) * _versions(model)
        for model in options.models.values()
    )
    return max(os.cpu_count() or 1, 2 * needed)


def _versions(model: ModelOptions) -> int:
    """How many there may be at once; of all there are, as many as there are now."""
    if isinstance(model.versions, str):
        return max(1, len(wanted_versions(model)))
    return len(model.versions)


async def _watch(models: dict[str, Model], seconds: float) -> None:
    """Keeps every model at its wanted versions; one that fails does not stop others."""

    async def keep(model: Model) -> None:
        while True:
            try:
                await model.refresh()
            except Exception:
                logger.exception("%s: its versions could not be updated", model.name)
            await asyncio.sleep(seconds)

    await asyncio.gather(*(keep(model) for model in models.values()))
