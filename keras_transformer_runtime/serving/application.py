"""The paths of the server."""

import asyncio
import contextlib
import logging
import pathlib
import re
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import TypeAlias, TypeVar

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

from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.serving import completions, libretranslate, rest
from keras_transformer_runtime.serving.completions import (
    Completion,
    CompletionRequest,
    Usage,
)
from keras_transformer_runtime.serving.libretranslate import (
    Direction,
    TranslateRequest,
    form_values,
)
from keras_transformer_runtime.serving.loaded_model import GENERATING, generated_row
from keras_transformer_runtime.serving.metrics import Metrics
from keras_transformer_runtime.serving.openapi import description
from keras_transformer_runtime.serving.protection import (
    NO_KEY,
    BodyTooLarge,
    bearer,
    is_key,
    protect,
    unpack_gzip,
)
from keras_transformer_runtime.serving.requests import (
    Generation,
    OptionFields,
    RequestError,
    Text,
    error_body,
    generation_options,
    json_object,
    openai_error,
)
from keras_transformer_runtime.serving.served_model import (
    LoadedVersion,
    ModelVersion,
    ServedModel,
)
from keras_transformer_runtime.serving.server_options import NAME, ServerOptions

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
            _route("/openapi.json", self.openapi),
            _route("/v1/models", self.all_models),
            _route("/v1/completions", self.completions, methods=["POST"]),
            _route("/translate", self.translate, methods=["POST"]),
            _route("/languages", self.languages),
        ]
        for path in (version, model):
            routes += [
                _route(path + ":predict", self.predict, methods=["POST"]),
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
                "data": [_openai_model(model) for model in self._models.values()],
                "models": [
                    _description(model, self._options)
                    for model in self._models.values()
                ],
                "max_characters": self._options.max_characters,
            }
        )

    async def status(self, request: Request) -> Response:
        """Returns the states of the versions of a model."""
        model = self._model(request.path_params["name"])
        number = self._number(request)
        states = [
            _state(version)
            for _, version in sorted(model.versions.items(), reverse=True)
            if number in (None, version.number)
        ]
        if not states:
            raise RequestError(404, f"{model.name} does not have this version")
        return JSONResponse({**_openai_model(model), "model_version_status": states})

    async def metadata(self, request: Request) -> Response:
        """Returns the signatures of a version."""
        model = self._model(request.path_params["name"])
        version = model.available(self._number(request))
        spec = {
            "name": model.name,
            "signature_name": "",
            "version": str(version.number),
        }
        metadata = await asyncio.to_thread(version.loaded.model.metadata)
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def predict(self, request: Request) -> Response:
        """Computes a `:predict` request of TensorFlow Serving's API."""
        model = self._model(request.path_params["name"])
        # Before `_measured`, which awaits the messages after the body.
        body = await self._body(request)
        return await self._measured(request, model, self._predict(request, model, body))

    async def _predict(
        self, request: Request, model: ServedModel, body: bytes
    ) -> Response:
        loaded = model.available(self._number(request)).loaded
        parsed = rest.parse(body, loaded.model.signatures, self._options)
        outputs = await self._outputs(model, loaded, parsed)
        self._metrics.texts.labels(model.name).inc(len(outputs))
        return JSONResponse(rest.format_response(outputs, parsed.by_rows))

    async def _outputs(
        self, model: ServedModel, loaded: LoadedVersion, parsed: rest.PredictRequest
    ) -> list[rest.Row]:
        """Computes the outputs of a signature."""
        name, rows = parsed.signature, parsed.rows
        takes_text = "text" in loaded.model.signatures[name].inputs
        if name not in GENERATING or not takes_text:
            if parsed.options is not None:
                raise RequestError(
                    400, f"the signature {name!r} has no 'options'; remove them"
                )
            return await loaded.call(name, rows)
        is_default = name == rest.DEFAULT_SIGNATURE
        prefixes = [row.get("prefix", "") for row in rows]
        given = (parsed.options or OptionFields()).model_dump()
        if not is_default and parsed.options is None and loaded.model.has_own_nbest:
            return await loaded.call(name, rows)  # with a seed for each text
        engine = loaded.model.engine
        options = generation_options(given, engine, self._options, any(prefixes))
        seeds = {row["seed"] for row in rows if "seed" in row}
        if options.samples and options.seed is None and seeds:
            if len(seeds) > 1:
                raise RequestError(400, "each 'seed' must be the same with this engine")
            given["seed"] = seeds.pop()
            options = generation_options(given, engine, self._options, any(prefixes))
        texts = [row["text"] for row in rows]
        generation = Generation(options, has_prefix=any(prefixes))
        if is_default:
            found = await model.generate(loaded, texts, generation)
        else:
            pairs = zip(texts, prefixes, strict=True)
            found = await loaded.generate([Text(*pair) for pair in pairs], generation)
        return [generated_row(hypotheses, name) for hypotheses in found]

    async def translate(self, request: Request) -> Response:
        """Translates texts, as LibreTranslate does."""
        body = await self._body(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind == "application/x-www-form-urlencoded" and not body.startswith(b"{"):
            values = form_values(body)
        else:
            values = json_object(body)
        asked = TranslateRequest.read(values)
        key = self._options.api_key
        given = bearer(request.headers) or asked.api_key or ""
        if key is not None and not is_key(given, key):
            raise RequestError(401, f"{NO_KEY}, or `api_key` in its body")
        asked.check(self._options)
        model = self._translator(asked)
        return await self._measured(request, model, self._translate(asked, model))

    async def _translate(self, asked: TranslateRequest, model: ServedModel) -> Response:
        loaded = model.available().loaded
        engine = loaded.model.engine
        options = generation_options(asked.options(), engine, self._options)
        found = await model.generate(loaded, asked.texts, Generation(options))
        self._metrics.texts.labels(model.name).inc(len(found))
        return JSONResponse(asked.body(found))

    async def languages(self, request: Request) -> Response:
        """Returns the languages of the models."""
        return JSONResponse(libretranslate.languages_body(self._directions().values()))

    async def completions(self, request: Request) -> Response:
        """Continues prompts, as OpenAI's API does."""
        asked = CompletionRequest.read(json_object(await self._body(request)))
        asked.check(self._options)
        model = self._model(asked.model)
        if not asked.stream:
            return await self._measured(request, model, self._complete(asked, model))
        events = self._events(asked, model)
        first = await self._measured(request, model, _next(events))
        return StreamingResponse(
            _rest(first, events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _continuation(
        self, asked: CompletionRequest, model: ServedModel
    ) -> tuple[LoadedVersion, Generation]:
        """Returns the version of a language model, and how it continues prompts."""
        loaded = model.available().loaded
        engine = loaded.model.engine
        if not engine.is_language_model:
            raise RequestError(
                400,
                f"the model {model.name!r} translates texts. Use `/translate` or "
                f"`/v1/models/{model.name}:predict`",
            )
        options = generation_options(asked.options(), engine, self._options)
        return loaded, Generation(
            options, include_prompt=asked.echo, streams=asked.stream
        )

    async def _complete(self, asked: CompletionRequest, model: ServedModel) -> Response:
        """Returns whole continuations."""
        loaded, generation = self._continuation(asked, model)
        texts = [Text(prompt) for prompt in asked.prompts]
        found = await loaded.generate(texts, generation)
        prompts = [prompt for prompt in asked.prompts for _ in range(asked.n)]
        hypotheses = [each for own in found for each in own]
        usage = await self._usage(asked, model, loaded, hypotheses)
        logprobs: list[dict[str, object] | None] = [None] * len(hypotheses)
        if asked.logprobs is not None:
            rows = [
                {"source": prompt, "target": each.text}
                for prompt, each in zip(prompts, hypotheses, strict=True)
            ]
            logprobs = [
                completions.logprobs_body(
                    row["tokens"], row["token_scores"], not each.truncated
                )
                for row, each in zip(
                    await loaded.call("score", rows), hypotheses, strict=True
                )
            ]
        choices = [
            completions.choice(i, each.text, completions.finish_reason(each), own)
            for i, (each, own) in enumerate(zip(hypotheses, logprobs, strict=True))
        ]
        return JSONResponse(Completion(asked).body(choices, usage))

    async def _events(
        self, asked: CompletionRequest, model: ServedModel
    ) -> AsyncGenerator[str]:
        """Yields the events of a stream."""
        loaded, generation = self._continuation(asked, model)
        loop = asyncio.get_running_loop()
        newest: dict[int, str] = {}  # the texts of which a part is not sent
        changed = asyncio.Event()
        sent = [""] * (len(asked.prompts) * asked.n)

        def write(index: int, text: str) -> None:
            newest[index] = text
            changed.set()

        def receiver(place: int) -> Callable[[str], bool]:
            def receive(text: str) -> bool:
                if not generating.done():
                    loop.call_soon_threadsafe(write, place * asked.n, text)
                return generating.done()  # the client has disconnected

            return receive

        texts = [
            Text(prompt, on_text=receiver(place))
            for place, prompt in enumerate(asked.prompts)
        ]
        completion = Completion(asked)
        generating = asyncio.ensure_future(loaded.generate(texts, generation))
        generating.add_done_callback(lambda _: changed.set())
        try:
            while not generating.done():
                await changed.wait()
                changed.clear()
                for index in [*newest]:
                    text = newest.pop(index)
                    if len(text) > len(sent[index]):
                        yield completion.piece(index, text[len(sent[index]) :])
                        sent[index] = text
            hypotheses = [each for own in await generating for each in own]
            usage = await self._usage(asked, model, loaded, hypotheses)
            for index, each in enumerate(hypotheses):
                rest_of_text = each.text[len(sent[index]) :]
                reason = completions.finish_reason(each)
                yield completion.piece(index, rest_of_text, reason)
            if asked.stream_options is not None and asked.stream_options.include_usage:
                yield completion.usage(usage)
            yield completions.DONE
        finally:
            generating.cancel()

    async def _usage(
        self,
        asked: CompletionRequest,
        model: ServedModel,
        loaded: LoadedVersion,
        outputs: Sequence[Hypothesis],
    ) -> Usage:
        """Counts the tokens of a request, also for the metrics."""
        self._metrics.texts.labels(model.name).inc(len(asked.prompts))
        prompts = await asyncio.to_thread(loaded.model.measure, asked.prompts)
        return Usage(sum(prompts), sum(each.length for each in outputs))

    async def _measured(
        self,
        request: Request,
        model: ServedModel,
        computation: Coroutine[object, object, T],
    ) -> T:
        """Awaits a computation within the timeout, while the client is connected."""
        started = time.perf_counter()
        status = 500
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                found = await _cancel_on_disconnect(request, computation)
            status = 200
            return found
        except TimeoutError:
            status = 504
            seconds = self._options.timeout_seconds
            raise RequestError(504, f"no response within {seconds:g} s") from None
        except ClientDisconnect:
            status = 400
            raise RequestError(400, "the client has disconnected") from None
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._metrics.requests.labels(model.name, str(status)).inc()
            seconds = time.perf_counter() - started
            self._metrics.seconds.labels(model.name).observe(seconds)

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
            raise _body_too_large(limit)
        body = bytearray()
        seconds = self._options.timeout_seconds
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

    def _directions(self) -> Mapping[str, Direction]:
        """Returns the languages of the models that have them, by name."""
        found = {name: model.languages for name, model in self._models.items()}
        return {name: Direction(*pair) for name, pair in found.items() if pair}

    def _translator(self, asked: TranslateRequest) -> ServedModel:
        """Returns the model that translates a request."""
        try:
            return self._models[asked.model(self._directions())]
        except RequestError:
            for model in self._models.values():
                if model.loading:
                    model.available()  # raises an error that says so
            raise

    def _model(self, name: str) -> ServedModel:
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
        "version": version.number,
        "engine": loaded.engine.name,
        "is_language_model": loaded.engine.is_language_model,
        "languages": model.languages,
        "num_beams": min(loaded.engine.options.num_beams, limits.max_beams),
        "compiling": loaded.progress.remaining,
        "signatures": sorted(loaded.signatures),
    }


def _openai_model(model: ServedModel) -> dict[str, object]:
    """Returns a model as OpenAI's API does."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "keras_transformer",
    }


def _body_too_large(limit: int) -> RequestError:
    return RequestError(
        413,
        f"the body must have at most {limit} bytes, also unpacked. Send fewer texts, "
        "or raise the option `max_body_bytes` of the server",
    )


async def _next(events: AsyncIterator[str]) -> str:
    return await anext(events)


async def _rest(first: str, events: AsyncGenerator[str]) -> AsyncIterator[str]:
    """Yields the events of a stream, the first of which is there already."""
    try:
        async with contextlib.aclosing(events):
            yield first
            async for event in events:
                yield event
    except RequestError as error:
        yield completions.event(openai_error(error.status, error.message))
    except Exception:
        logger.exception("a stream failed")
        yield completions.event(openai_error(500, "the model failed"))


def _state(version: ModelVersion) -> dict[str, object]:
    code = "UNKNOWN" if version.error else "OK"
    return {
        "version": str(version.number),
        "state": version.state,
        "status": {"error_code": code, "error_message": version.error},
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
