"""What the endpoints of all APIs have in common: bodies, timeouts and metrics."""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from keras_transformer_runtime.serving.metrics import Metrics
from keras_transformer_runtime.serving.protection import BodyTooLarge, unpack_gzip
from keras_transformer_runtime.serving.requests import RequestError
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import ServerOptions

T = TypeVar("T")
GZIP = ("gzip", "x-gzip")


class Endpoints:
    """Base class of the endpoints of an API.

    Args:
        models: dictionary of `ServedModel` by name.
        options: `ServerOptions`.
        metrics: `Metrics`.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        options: ServerOptions,
        metrics: Metrics,
    ):
        self.models = models
        self.options = options
        self.metrics = metrics

    def model(self, name: str) -> ServedModel:
        """Returns a model by its name."""
        if name not in self.models:
            raise RequestError(
                404,
                f"model {name!r:.80} does not exist; models: {sorted(self.models)}",
            )
        return self.models[name]

    async def measured(
        self,
        request: Request,
        model: ServedModel,
        computation: Coroutine[object, object, T],
    ) -> T:
        """Awaits a computation within the timeout, while the client is connected."""
        started = time.perf_counter()
        status = 500
        try:
            async with asyncio.timeout(self.options.timeout_seconds):
                found = await _cancel_on_disconnect(request, computation)
            status = 200
            return found
        except TimeoutError:
            status = 504
            seconds = self.options.timeout_seconds
            raise RequestError(504, f"no response within {seconds:g} s") from None
        except ClientDisconnect:
            status = 400
            raise RequestError(400, "the client has disconnected") from None
        except RequestError as error:
            status = error.status
            raise
        finally:
            self.metrics.requests.labels(model.name, str(status)).inc()
            seconds = time.perf_counter() - started
            self.metrics.seconds.labels(model.name).observe(seconds)

    async def body(self, request: Request) -> bytes:
        """Reads a body, which must be small and arrive in time, and unpacks it."""
        limit = self.options.max_body_bytes
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", *GZIP):
            raise RequestError(
                415,
                "the encoding of the body must be gzip or identity; received "
                f"{encoding:.80}",
            )
        length = request.headers.get("content-length", "0")
        if not is_number(length) or int(length) > limit:
            raise _body_too_large(limit)
        body = bytearray()
        seconds = self.options.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise _body_too_large(limit)
        except TimeoutError:
            message = f"the body must arrive within {seconds:g} s"
            raise RequestError(408, message) from None
        except ClientDisconnect:
            raise RequestError(400, "the client has disconnected") from None
        if encoding == "identity":
            return bytes(body)
        try:
            return unpack_gzip(bytes(body), limit)
        except BodyTooLarge:
            raise _body_too_large(limit) from None
        except ValueError as error:
            raise RequestError(400, str(error)) from None


def is_number(text: str) -> bool:
    """Returns whether a text is a number of at most 19 digits."""
    return text.isascii() and text.isdigit() and len(text) < 20


async def _cancel_on_disconnect(
    request: Request, computation: Coroutine[object, object, T]
) -> T:
    """Awaits a computation, and cancels it if the client disconnects."""
    result = asyncio.ensure_future(computation)
    disconnect = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        result.cancel()
        disconnect.cancel()


async def _disconnect(request: Request) -> None:
    """Returns when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _body_too_large(limit: int) -> RequestError:
    return RequestError(
        413,
        f"the body must have at most {limit} bytes, also unpacked. Send fewer texts, "
        "or raise the option `max_body_bytes` of the server",
    )
