"""The HTTP application: TensorFlow Serving's REST API, health, metrics, the page."""

import asyncio
import logging
import pathlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import Lifespan

from keras_transformer.serving import rest, sentences, terminology, text_stream
from keras_transformer.serving.metrics import Metrics
from keras_transformer.serving.protection import protect
from keras_transformer.serving.rest import Columns, PredictRequest, RequestError
from keras_transformer.serving.served_model import ModelVersion, ServedModel
from keras_transformer.serving.server_options import NAME, ServerOptions

logger = logging.getLogger(__name__)
T = TypeVar("T")
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

PAGE = pathlib.Path(__file__).parent / "page" / "index.html"
MAX_MESSAGE_LENGTH = 1_000
GZIP = ("gzip", "x-gzip")
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def _route(path: str, endpoint: Endpoint, methods: Sequence[str] = ("GET",)) -> Route:
    """Returns a route whose pattern does not match a path that ends in a line break."""
    route = Route(path, endpoint, methods=[*methods])
    pattern = route.path_regex.pattern.removesuffix("$") + r"\Z"
    route.path_regex = re.compile(pattern)
    return route


class _NameConvertor(StringConvertor):
    """The name of a model in a path."""

    regex = NAME


register_url_convertor("name", _NameConvertor())


class Application:
    """Responds to HTTP requests."""

    def __init__(
        self,
        models: dict[str, ServedModel],
        options: ServerOptions,
        lifespan: Lifespan[Starlette] | None = None,
    ):
        self._models = models
        self._options = options
        self._metrics = Metrics()
        model = "/v1/models/{name:name}"
        version = model + "/versions/{version}"
        routes = [
            _route("/", self.page),
            _route("/health", self.health),
            _route("/ready", self.ready),
            _route("/metrics", self.metrics),
            _route("/monitoring/prometheus/metrics", self.metrics),
            _route("/v1/models", self.all_models),
        ]
        for path in (version, model):
            routes += [
                _route(path + ":predict", self.predict, methods=["POST"]),
                _route(path + ":stream", self.stream, methods=["POST"]),
                _route(path + "/metadata", self.metadata),
                _route(path, self.status),
            ]
        application = Starlette(
            routes=routes,
            lifespan=lifespan,
            exception_handlers={
                RequestError: _respond_refusal,
                HTTPException: _respond_http_error,
                Exception: _respond_failure,
            },
        )
        self.asgi = protect(application, options)

    async def page(self, request: Request) -> Response:
        """Returns the page to try the models."""
        return FileResponse(PAGE, headers=PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Returns status 200, since the server is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Returns whether every model has a version with a running replica."""
        ready = {name: model.ready for name, model in self._models.items()}
        return JSONResponse(
            {"ready": all(ready.values()), "models": ready},
            status_code=200 if all(ready.values()) else 503,
        )

    async def metrics(self, request: Request) -> Response:
        """Returns the metrics for Prometheus."""
        text = await self._metrics.collect(self._models.values())
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def all_models(self, request: Request) -> Response:
        """Returns the models and the limit of a text, which the page reads."""
        models = [_description(model) for model in self._models.values()]
        limit = self._options.max_characters
        return JSONResponse({"models": models, "max_characters": limit})

    async def status(self, request: Request) -> Response:
        """Returns the states of the versions of a model."""
        model = self._model(request)
        number = self._number(request)
        states = [
            _state(version)
            for _, version in sorted(model.versions.items(), reverse=True)
            if number in (None, version.number)
        ]
        if not states:
            raise RequestError(404, f"{model.name} does not have this version")
        return JSONResponse({"model_version_status": states})

    async def metadata(self, request: Request) -> Response:
        """Returns the signatures of a version."""
        model = self._model(request)
        version = model.available(self._number(request))
        spec = {
            "name": model.name,
            "signature_name": "",
            "version": str(version.number),
        }
        return JSONResponse(
            {"model_spec": spec, "metadata": version.loaded.replicas.metadata}
        )

    async def predict(self, request: Request) -> Response:
        """Computes a `:predict` request."""
        model = self._model(request)
        started = time.perf_counter()
        status = 500
        try:
            response = await self._predict(request, model)
            status = response.status_code
            return response
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._metrics.requests.labels(model.name, str(status)).inc()
            seconds = time.perf_counter() - started
            self._metrics.seconds.labels(model.name).observe(seconds)

    async def _predict(self, request: Request, model: ServedModel) -> Response:
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                body = await self._body(request)
                version = model.available(self._number(request))
                signatures = version.loaded.replicas.signatures
                parsed = rest.parse(body, signatures, self._options)
                computation = _compute(version, parsed, model)
                outputs = await _cancel_on_disconnect(request, computation)
        except TimeoutError:
            raise RequestError(
                504, f"no response within {self._options.timeout_seconds:g} s"
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "the client has disconnected") from None
        self._metrics.texts.labels(model.name).inc(parsed.rows)
        return JSONResponse(rest.format_response(outputs, parsed.by_rows))

    async def stream(self, request: Request) -> Response:
        """Continues a prompt, in server-sent events.

        Each event has a piece of the text, `{"text": ...}`. The last one is of the type
        `end`, or of the type `error` if the model fails later than in the first piece.
        """
        model = self._model(request)
        status = 500
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                body = await self._body(request)
            parsed = text_stream.parse(body, self._options)
            version = model.available(self._number(request))
            if text_stream.SIGNATURE not in version.loaded.replicas.signatures:
                raise RequestError(
                    400,
                    f"{model.name} cannot stream: it has no signature "
                    f"{text_stream.SIGNATURE!r}. Export a language model with "
                    "GreedySearch or Sampling",
                )
            pieces = text_stream.pieces(version.loaded.batcher, parsed)
            first = await self._next_piece(pieces)
            status = 200
        except ClientDisconnect:
            status = 400
            raise RequestError(400, "the client has disconnected") from None
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._metrics.requests.labels(model.name, str(status)).inc()
        self._metrics.texts.labels(model.name).inc(1)
        return StreamingResponse(
            self._events(first, pieces),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _next_piece(self, pieces: AsyncIterator[str]) -> str | None:
        """Returns the next piece of a stream, `None` at its end."""
        seconds = self._options.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await anext(pieces, None)
        except TimeoutError:
            raise RequestError(504, f"no response within {seconds:g} s") from None

    async def _events(
        self, piece: str | None, pieces: AsyncIterator[str]
    ) -> AsyncIterator[str]:
        """Yields the events of a stream, whose first piece has been computed."""
        try:
            while piece is not None:
                yield text_stream.event({"text": piece})
                piece = await self._next_piece(pieces)
        except RequestError as error:
            yield text_stream.event({"error": error.message}, "error")
        except Exception:
            logger.exception("a stream failed")
            yield text_stream.event({"error": "the model failed"}, "error")
        else:
            yield text_stream.event({}, "end")

    async def _body(self, request: Request) -> bytes:
        limit = self._options.max_body_bytes
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", *GZIP):
            raise RequestError(
                415,
                "the encoding of the body must be gzip or identity; received "
                f"{encoding:.80}",
            )
        length = request.headers.get("content-length", "0")
        if not _is_number(length) or int(length) > limit:
            raise rest.body_too_large(limit)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise rest.body_too_large(limit)
        if encoding == "identity":
            return bytes(body)
        return rest.unpack_gzip(bytes(body), limit)

    def _model(self, request: Request) -> ServedModel:
        name = request.path_params["name"]
        if name not in self._models:
            raise RequestError(
                404,
                f"model {name!r:.80} does not exist; models: {sorted(self._models)}",
            )
        return self._models[name]

    def _number(self, request: Request) -> int | None:
        text = request.path_params.get("version")
        if text is None:
            return None
        if not _is_number(text):
            raise RequestError(
                400, f"the version must be a number; received {text!r:.80}"
            )
        return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


async def _compute(
    version: ModelVersion, parsed: PredictRequest, model: ServedModel
) -> Columns:
    """Computes a request, by sentences and with a dictionary if it is configured so."""
    predict, dictionary = version.loaded.batcher.predict, model.dictionary
    language = model.options.split_sentences
    is_plain = language is None and dictionary is None
    if is_plain or parsed.signature != rest.DEFAULT_SIGNATURE:
        return await predict(parsed.signature, parsed.inputs)

    async def decode(texts: list[str]) -> Columns:
        if dictionary is None:
            return await predict(parsed.signature, {"text": texts})
        return await terminology.decode(predict, texts, dictionary)

    if language is None:
        return await decode(parsed.inputs["text"])
    texts, parts = sentences.split(parsed.inputs["text"], language)
    limit = model.options.max_waiting
    if len(texts) > limit:
        raise RequestError(
            400, f"the texts must have at most {limit} sentences; received {len(texts)}"
        )
    outputs: Columns = {"text": [], "score": [], "truncated": []}
    if texts:
        outputs = await decode(texts)
    return sentences.join(outputs, parts)


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


def _description(model: ServedModel) -> dict[str, object]:
    description: dict[str, object] = {
        "name": model.name,
        "ready": bool(model.active()),
        "splits_sentences": model.options.split_sentences is not None,
        "terms": len(model.dictionary or ()),
    }
    if not description["ready"]:
        errors = [version.error for version in model.versions.values() if version.error]
        return {**description, "error": errors[-1]} if errors else description
    version = model.available()
    return {
        **description,
        "version": version.number,
        "compiled": version.compiled,
        "signatures": sorted(version.loaded.replicas.signatures),
    }


def _state(version: ModelVersion) -> dict[str, object]:
    code = "UNKNOWN" if version.error else "OK"
    return {
        "version": str(version.number),
        "state": version.state,
        "status": {"error_code": code, "error_message": version.error},
    }


async def _respond_refusal(request: Request, error: Any) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse(
        {"error": error.message[:MAX_MESSAGE_LENGTH]},
        status_code=error.status,
        headers=headers,
    )


async def _respond_http_error(request: Request, error: Any) -> Response:
    return JSONResponse(
        {"error": f"{request.method} {request.url.path[:200]}: {error.detail}"},
        status_code=error.status_code,
        headers=error.headers,
    )


async def _respond_failure(request: Request, error: Exception) -> Response:
    return JSONResponse(
        {"error": "internal error; see the log of the server"}, status_code=500
    )
