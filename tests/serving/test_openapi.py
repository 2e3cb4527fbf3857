"""`/openapi.json` is valid and describes each route and the bodies that it takes."""

import pytest
from fake_models import FakeModel, client_of, served
from openapi_spec_validator import validate
from starlette.applications import Starlette

from keras_transformer_runtime.serving import application
from keras_transformer_runtime.serving.completions import CompletionRequest
from keras_transformer_runtime.serving.libretranslate import TranslateRequest
from keras_transformer_runtime.serving.requests import OptionFields
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once("torch")


@pytest.fixture
def description_of(tmp_path, monkeypatch):
    """Returns the description of a server with options, and its routes."""
    routes = []

    class Recorded(Starlette):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            routes.extend(self.routes)

    monkeypatch.setattr(application, "Starlette", Recorded)

    def describe(**given):
        options = make_server_options(models={"m": {"folder": tmp_path}}, **given)
        model = served("m", options.models["m"], FakeModel())
        with client_of({"m": model}, options) as client:
            return client.get("/openapi.json").json(), routes

    return describe


@pytest.mark.parametrize("given", [{}, {"api_key": "3Kq-7"}])
def test_the_description_is_valid(given, description_of):
    description, _ = description_of(**given)
    validate(description)
    has_key = "securitySchemes" in description["components"]
    assert has_key == ("security" in description) == bool(given)


def test_each_route_is_described(description_of):
    description, routes = description_of()
    described = {
        (path, method.upper())
        for path, operations in description["paths"].items()
        for method in operations
    }
    expected = {
        (route.path.replace("{name:name}", "{name}"), method)
        for route in routes
        for method in route.methods - {"HEAD"}
    }
    assert described == expected and len(expected) == len(routes)


def test_the_bodies_are_those_of_the_server(description_of):
    description, _ = description_of()
    schemas = description["components"]["schemas"]
    for kind in (CompletionRequest, TranslateRequest, OptionFields):
        schema = schemas[kind.__name__]
        assert schema["properties"].keys() == kind.model_fields.keys()
        assert schema["additionalProperties"] is False
    assert schemas["CompletionRequest"]["required"] == ["model", "prompt"]
    body = description["paths"]["/translate"]["post"]["requestBody"]
    reference = {"$ref": "#/components/schemas/TranslateRequest"}
    assert body["content"]["application/json"]["schema"] == reference
