"""The description of the server's paths: `/openapi.json`."""

from typing import NamedTuple

from pydantic import BaseModel

from keras_transformer_runtime import __version__
from keras_transformer_runtime.serving.completions import CompletionRequest
from keras_transformer_runtime.serving.libretranslate import TranslateRequest
from keras_transformer_runtime.serving.requests import OptionFields, RequestModel
from keras_transformer_runtime.serving.server_options import NAME, ServerOptions

_ANY: dict[str, object] = {"type": "object"}


class PredictBody(RequestModel):
    """The body of a `:predict` request, with `instances` or `inputs`."""

    signature_name: str = "serving_default"
    instances: list[object] | None = None
    inputs: dict[str, list[object]] | list[object] | None = None
    options: OptionFields | None = None


class _Path(NamedTuple):
    path: str
    method: str
    summary: str
    body: type[BaseModel] | None = None
    response: str = "application/json"


_PATHS = (
    _Path("/", "get", "A page to try the models.", response="text/html"),
    _Path("/health", "get", "Whether the server is alive."),
    _Path("/ready", "get", "Whether every model is available (503 until then)."),
    _Path("/metrics", "get", "Metrics for Prometheus.", response="text/plain"),
    _Path(
        "/monitoring/prometheus/metrics",
        "get",
        "The same, where TensorFlow Serving has them.",
        response="text/plain",
    ),
    _Path("/v1/models", "get", "The models (OpenAI)."),
    _Path("/v1/models/{name}", "get", "A model and the states of its versions."),
    _Path("/v1/models/{name}/versions/{version}", "get", "The state of a version."),
    _Path("/v1/models/{name}/metadata", "get", "The signatures of a model."),
    _Path(
        "/v1/models/{name}/versions/{version}/metadata",
        "get",
        "The signatures of a version.",
    ),
    _Path(
        "/v1/models/{name}:predict",
        "post",
        "Compute a signature: outputs, classes, tags or vectors (TensorFlow Serving).",
        PredictBody,
    ),
    _Path(
        "/v1/models/{name}/versions/{version}:predict",
        "post",
        "Compute a signature of a version (TensorFlow Serving).",
        PredictBody,
    ),
    _Path(
        "/v1/completions",
        "post",
        "Continue prompts with a language model (OpenAI).",
        CompletionRequest,
    ),
    _Path("/translate", "post", "Translate texts (LibreTranslate).", TranslateRequest),
    _Path("/languages", "get", "The languages of the models (LibreTranslate)."),
    _Path("/openapi.json", "get", "This description."),
)


def description(options: ServerOptions) -> dict[str, object]:
    """Returns the description of the paths in the format OpenAPI 3.1."""
    schemas: dict[str, object] = {}
    paths: dict[str, dict[str, object]] = {}
    for each in _PATHS:
        paths.setdefault(each.path, {})[each.method] = _operation(each, schemas)
    components: dict[str, object] = {"schemas": schemas}
    document: dict[str, object] = {
        "openapi": "3.1.0",
        "info": {"title": "keras_transformer", "version": __version__},
        "paths": paths,
        "components": components,
    }
    if options.api_key is not None:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _operation(path: _Path, schemas: dict[str, object]) -> dict[str, object]:
    operation: dict[str, object] = {
        "summary": path.summary,
        "responses": {
            "200": {"description": "OK", "content": {path.response: {}}},
            "default": {
                "description": "An error, with the key `error`.",
                "content": {"application/json": {"schema": _ANY}},
            },
        },
    }
    parameters = []
    for name, kind in (
        ("name", {"type": "string", "pattern": f"^{NAME}$"}),
        ("version", {"type": "integer"}),
    ):
        if f"{{{name}}}" in path.path:
            parameters.append(
                {"name": name, "in": "path", "required": True, "schema": kind}
            )
    if parameters:
        operation["parameters"] = parameters
    if path.body is not None:
        schema = path.body.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        schemas.update(schema.pop("$defs", {}))
        schemas[path.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{path.body.__name__}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    return operation
