"""The paths of the server."""

import pathlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Lifespan

from keras_transformer_runtime.serving.completions import Completions, model_object
from keras_transformer_runtime.serving.libretranslate import LibreTranslate
from keras_transformer_runtime.serving.metrics import Metrics
from keras_transformer_runtime.serving.openapi import description
from keras_transformer_runtime.serving.protection import protect
from keras_transformer_runtime.serving.requests import RequestError, error_body
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import NAME, ServerOptions
from keras_transformer_runtime.serving.tensorflow_serving import TensorFlowServing

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

PAGE = pathlib.Path(__file__).parent / "page" / "index.html"
MAX_MESSAGE_LENGTH = 1_000
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
        tensorflow_serving = TensorFlowServing(models, options, self._metrics)
        completions = Completions(models, options, self._metrics)
        libretranslate = LibreTranslate(models, options, self._metrics)
        model = "/v1/models/{name:name}"
        version = model + "/versions/{version}"
        routes = [
            _route("/", self.page),
            _route("/health", self.health),
            _route("/ready", self.ready),
            _route("/metrics", self.metrics),
            _route("/monitoring/prometheus/metrics", self.metrics),
            _route("/openapi.json", self.openapi),
            _route("/v1/models", self.all_models),
            _route("/v1/completions", completions.complete, methods=["POST"]),
            _route("/translate", libretranslate.translate, methods=["POST"]),
            _route("/languages", libretranslate.languages),
        ]
        for path in (version, model):
            routes += [
                _route(path + ":predict", tensorflow_serving.predict, methods=["POST"]),
                _route(path + "/metadata", tensorflow_serving.metadata),
                _route(path, tensorflow_serving.status),
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

    def update_metrics(self) -> None:
        """Sets the metrics that describe the models."""
        self._metrics.update(self._models.values())

    async def page(self, request: Request) -> Response:
        """Returns the page to try the models."""
        return FileResponse(PAGE, headers=PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Returns status 200, since the server is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Returns whether every model has an available version."""
        ready = {name: model.ready for name, model in self._models.items()}
        compiling = {name: model.compiling for name, model in self._models.items()}
        return JSONResponse(
            {"ready": all(ready.values()), "models": ready, "compiling": compiling},
            status_code=200 if all(ready.values()) else 503,
        )

    async def metrics(self, request: Request) -> Response:
        """Returns the metrics for Prometheus."""
        self.update_metrics()
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """Returns the description of the paths in the format OpenAPI."""
        return JSONResponse(description(self._options))

    async def all_models(self, request: Request) -> Response:
        """Returns the models, in OpenAI's form and in that of the page."""
        return JSONResponse(
            {
                "object": "list",
                "data": [model_object(model) for model in self._models.values()],
                "models": [
                    _description(model, self._options)
                    for model in self._models.values()
                ],
                "max_characters": self._options.max_characters,
            }
        )


def _description(model: ServedModel, limits: ServerOptions) -> dict[str, object]:
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
    loaded = version.loaded.model
    return {
        **description,
        **loaded.facts(limits),
        "version": version.number,
        "task": loaded.task,
        "languages": model.languages,
        "compiling": loaded.progress.remaining,
        "signatures": sorted(loaded.signatures),
    }


async def _respond_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {
        401: {"WWW-Authenticate": "Bearer"},
        503: {"Retry-After": "1"},
    }.get(error.status)
    message = error.message[:MAX_MESSAGE_LENGTH]
    body = error_body(request.url.path, error.status, message)
    return JSONResponse(body, status_code=error.status, headers=headers)


async def _respond_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, status = request.url.path, error.status_code
    message = f"{request.method} {path[:200]}: {error.detail}"
    body = error_body(path, status, message)
    return JSONResponse(body, status_code=status, headers=error.headers)


async def _respond_failure(request: Request, error: Exception) -> Response:
    message = "internal error; see the log of the server"
    body = error_body(request.url.path, 500, message)
    return JSONResponse(body, status_code=500)
