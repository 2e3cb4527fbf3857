"""The HTTP application: TF Serving's REST API, health, metrics and the page."""

import asyncio
import logging
import pathlib
import time
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from keras_transformer.serving import rest, sentences
from keras_transformer.serving.metrics import Metrics
from keras_transformer.serving.models import Model, Version
from keras_transformer.serving.options import NAME, ModelOptions, ServerOptions
from keras_transformer.serving.rest import Prediction, RequestError

logger = logging.getLogger(__name__)

PAGE = pathlib.Path(__file__).parent / "page" / "index.html"
LONGEST_MESSAGE = 1_000
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class _NameConvertor(StringConvertor):
    """What may be a model's name in a path."""

    regex = NAME


register_url_convertor("name", _NameConvertor())


class Application:
    """Answers HTTP requests.

    Args:
        models: `Model`s by name.
        options: `ServerOptions`.
        lifespan: asynchronous context manager of a Starlette application, within
            which it runs.

    Attributes:
        asgi: the application as servers take it.
    """

    def __init__(
        self, models: dict[str, Model], options: ServerOptions, lifespan: Any = None
    ):
        self._models = models
        self._options = options
        self._metrics = Metrics()
        model = "/v1/models/{name:name}"
        version = model + "/versions/{version}"
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            Route("/monitoring/prometheus/metrics", self.metrics),
            Route("/v1/models", self.all_models),
        ]
        for path in (version, model):
            routes += [
                Route(path + ":predict", self.predict, methods=["POST"]),
                Route(path + "/metadata", self.metadata),
                Route(path, self.status),
            ]
        self.asgi = Starlette(
            routes=routes,
            lifespan=lifespan,
            exception_handlers={
                RequestError: _refused,
                HTTPException: _no_such_page,
                Exception: _failed,
            },
        )

    async def page(self, request: Request) -> Response:
        """The page to try the models."""
        return FileResponse(PAGE, headers=PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Whether the server is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether every model has a version that answers."""
        found = {name: bool(model.active()) for name, model in self._models.items()}
        return JSONResponse(
            {"ready": all(found.values()), "models": found},
            status_code=200 if all(found.values()) else 503,
        )

    async def metrics(self, request: Request) -> Response:
        """Figures for Prometheus."""
        running = [
            (name, version.number, await _running(version))
            for name, model in self._models.items()
            for version in model.active()
        ]
        # From here on without waiting, so that another request finds all of it.
        self._metrics.replicas.clear()
        for name, number, count in running:
            if count is not None:
                self._metrics.replicas.labels(name, number).set(count)
        for name, model in self._models.items():
            waiting = sum(version.batcher.waiting for version in model.active())
            self._metrics.waiting.labels(name).set(waiting)
            self._metrics.ready.labels(name).set(bool(model.active()))
        text = generate_latest(self._metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def all_models(self, request: Request) -> Response:
        """The models, and what the page needs to know of each."""
        models = [_description(model) for model in self._models.values()]
        return JSONResponse({"models": models})

    async def status(self, request: Request) -> Response:
        """The states of a model's versions."""
        model = self._model(request)
        number = self._number(request)
        states = [
            _state(version)
            for _, version in sorted(model.versions.items(), reverse=True)
            if number in (None, version.number)
        ]
        if not states:
            raise RequestError(404, f"{model.name} has no such version")
        return JSONResponse({"model_version_status": states})

    async def metadata(self, request: Request) -> Response:
        """The signatures of a version."""
        model = self._model(request)
        version = model.available(self._number(request))
        spec = {
            "name": model.name,
            "signature_name": "",
            "version": str(version.number),
        }
        return JSONResponse({"model_spec": spec, "metadata": version.workers.metadata})

    async def predict(self, request: Request) -> Response:
        """Answers a `:predict` request."""
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

    async def _predict(self, request: Request, model: Model) -> Response:
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                body = await self._body(request)
                version = model.available(self._number(request))
                asked = rest.parse(body, version.workers.signatures, self._options)
                answering = _outputs(version, asked, model.options)
                outputs = await _unless_gone(request, answering)
        except TimeoutError:
            raise RequestError(
                504, f"there was no answer in {self._options.timeout_seconds:g} s"
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "the client went before the answer") from None
        self._metrics.texts.labels(model.name).inc(asked.rows)
        return JSONResponse(rest.answer(outputs, asked.by_rows))

    async def _body(self, request: Request) -> bytes:
        limit = self._options.max_body_bytes
        encoding = request.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise RequestError(415, f"a body must not be encoded; received {encoding}")
        said = request.headers.get("content-length", "0")
        too_large = RequestError(413, f"a body must have at most {limit} bytes")
        if not said.isdigit() or int(said) > limit:
            raise too_large
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
        return bytes(body)

    def _model(self, request: Request) -> Model:
        name = request.path_params["name"]
        if name not in self._models:
            raise RequestError(
                404, f"there is no model {name!r:.80}; there are {sorted(self._models)}"
            )
        return self._models[name]

    def _number(self, request: Request) -> int | None:
        text = request.path_params.get("version")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise RequestError(
                400, f"a version must be a number; received {text!r:.80}"
            )
        return int(text)


async def _outputs(version: Version, asked: Prediction, options: ModelOptions) -> Any:
    """The outputs of a request, by sentences if so configured."""
    predict, language = version.batcher.predict, options.split_sentences
    if language is None or asked.signature != rest.DEFAULT_SIGNATURE:
        return await predict(asked.signature, asked.inputs)
    texts, parts = sentences.split(asked.inputs["text"], language)
    if len(texts) > options.max_waiting:
        raise RequestError(
            400,
            f"the texts must have at most {options.max_waiting} sentences; received "
            f"{len(texts)}",
        )
    found: Any = {"text": [], "score": []}
    if texts:
        found = await predict(asked.signature, {"text": texts})
    return sentences.join(found, parts)


async def _unless_gone(request: Request, answering: Coroutine) -> Any:
    """Waits for an answer, and gives it up when the client has gone."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _running(version: Version) -> int | None:
    """How many replicas are warm; `None` if that cannot be said now."""
    try:
        return await version.workers.running()
    except Exception as error:
        logger.warning("version %d: its replicas: %s", version.number, error)
        return None


def _description(model: Model) -> dict[str, Any]:
    known = {
        "name": model.name,
        "ready": bool(model.active()),
        "splits_sentences": model.options.split_sentences is not None,
    }
    if not known["ready"]:
        return known
    version = model.available()
    signatures = sorted(version.workers.signatures)
    return {**known, "version": version.number, "signatures": signatures}


def _state(version: Version) -> dict[str, Any]:
    code = "UNKNOWN" if version.error else "OK"
    return {
        "version": str(version.number),
        "state": version.state,
        "status": {"error_code": code, "error_message": version.error},
    }


async def _refused(request: Request, error: Any) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse(
        {"error": error.message[:LONGEST_MESSAGE]},
        status_code=error.status,
        headers=headers,
    )


async def _no_such_page(request: Request, error: Any) -> Response:
    return JSONResponse(
        {"error": f"{request.method} {request.url.path[:200]}: {error.detail}"},
        status_code=error.status_code,
        headers=error.headers,
    )


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server failed; see its log"}, status_code=500)
