"""LibreTranslate's API, with the requests of its documentation and a small model.

https://docs.libretranslate.com/
"""

import json
from urllib.parse import urlencode

import pytest
from fake_models import FakeModel, client_of, served

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer_runtime.serving.libretranslate import NAMES
from keras_transformer_runtime.serving.loaded_model import CTranslate2Model
from keras_transformer_runtime.serving.served_model import ModelVersion
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once("torch")

KEY = "3Kq-7"
TEXTS = ["abc", "", "cafe", " \t\u200b", "feed"]
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def server(translator_folder, tmp_path_factory):
    """Returns a client of a server with a translator, a language model and options."""
    letters = CTranslate2Model(translator_folder, 1)
    folder = tmp_path_factory.mktemp("models")

    def client(**given):
        models = {
            "letters": {"folder": folder, "languages": ["en", "de"]},
            "upper": {"folder": folder, "languages": ["en", "es"]},
            "writer": {"folder": folder, "languages": ["en", "fr"]},
            "unknown": {"folder": folder},
        }
        options = make_server_options(models=models, **given)
        loaded = {
            "letters": letters,
            "upper": FakeModel(),
            "writer": FakeModel(is_language_model=True),
            "unknown": FakeModel(),
        }
        found = {
            name: served(name, own, loaded[name])
            for name, own in options.models.items()
        }
        client = client_of(found, options)
        client.models = found
        return client

    return client


@pytest.fixture
def client(server):
    with server() as client:
        yield client


def translate(client, text, target="de", **given):
    body = {"q": text, "source": "en", "target": target, **given}
    response = client.post("/translate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_texts_of_generate(client, translator):
    expected = translator.generate(TEXTS, BeamSearch(3, 0.0))
    assert expected[0] and expected[2] and expected[1] == expected[3] == ""
    assert translate(client, TEXTS) == {"translatedText": expected}
    for text, output in zip(TEXTS, expected, strict=True):
        assert translate(client, text) == {"translatedText": output}


def test_alternatives(client, translator):
    texts = ["cafe", "", "feed"]  # whose outputs end before the limit
    search = BeamSearch(3, 0.0, num_hypotheses=3)
    expected = translator.generate(texts, search)
    assert translate(client, texts, alternatives=2) == {
        "translatedText": [best for best, *_ in expected],
        "alternatives": [others for _, *others in expected],
    }
    assert translate(client, "cafe", alternatives=2) == {
        "translatedText": expected[0][0],
        "alternatives": expected[0][1:],
    }
    # Hypotheses that the search has not found are left out.
    assert translate(client, "a", "es", alternatives=2) == {
        "translatedText": "A",
        "alternatives": [],
    }


def test_options_of_the_search(client, translator):
    expected = translator.generate(TEXTS, GreedySearch(), min_length=5)
    found = translate(client, TEXTS, num_beams=1, min_length=5)
    assert found["translatedText"] == expected


def test_the_request_of_the_documentation(client):
    """As `fetch` sends it in the examples."""
    body = {"q": "Hello!", "source": "en", "target": "es"}
    headers = {"Content-Type": "application/json"}
    response = client.post("/translate", content=json.dumps(body), headers=headers)
    assert response.json() == {"translatedText": "HELLO!"}
    body |= {"format": "text", "alternatives": 3, "api_key": ""}
    response = client.post("/translate", content=json.dumps(body), headers=headers)
    assert response.json() == {"translatedText": "HELLO!", "alternatives": []}
    body = {"q": "Ciao!", "source": "auto", "target": "es"}
    response = client.post("/translate", content=json.dumps(body), headers=headers)
    assert response.json() == {"translatedText": "CIAO!"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("q", "Hellö & so on")], {"translatedText": "HELLÖ & SO ON"}),
        ([("q", "a"), ("q", "b c")], {"translatedText": ["A", "B C"]}),
        ([("q", "")], {"translatedText": ""}),
        (
            [("q", "a"), ("alternatives", "2"), ("api_key", "")],
            {"translatedText": "A", "alternatives": []},
        ),
    ],
)
def test_forms(fields, expected, client):
    body = urlencode([*fields, ("source", "en"), ("target", "es")])
    types = (FORM, {"Content-Type": FORM["Content-Type"] + "; charset=utf-8"})
    for headers in types:
        response = client.post("/translate", content=body, headers=headers)
        assert response.json() == expected


def test_json_that_curl_sends_as_a_form(client):
    body = json.dumps({"q": "a", "source": "en", "target": "es"})
    response = client.post("/translate", content=body, headers=FORM)
    assert response.json() == {"translatedText": "A"}


def test_languages(client):
    en = {"code": "en", "name": "English", "targets": ["de", "es"]}
    assert client.get("/languages").json() == [en]
    assert NAMES["de"] == "German" and NAMES["vi"] == "Vietnamese"
    client.models["upper"].versions.clear()
    assert client.get("/languages").json() == [{**en, "targets": ["de"]}]


ASKED = {"q": "a", "source": "en", "target": "es"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"target": "fr"},
            "no model from 'en' to 'fr'; the server translates en to de",
        ),
        ({"source": "de"}, "there is no model from 'de' to 'es'"),
        ({"q": None}, "'q.str': "),
        ({"q": [3]}, "'q.list[str].0': input should be a valid string"),
        ({"q": []}, "1 to 256 texts; received 0"),
        ({"q": "a" * 5001}, "each of 'q' must have at most 5000 characters"),
        ({"q": "a" * 40}, "at most max_source_length=40 tokens; received 41"),
        ({"q": "\ud800"}, "'q' must be Unicode"),
        ({"q": "refuse"}, "`text` must be nice"),
        ({"format": "html"}, "'format': input should be 'text'"),
        ({"alternatives": -1}, "'alternatives': "),
        ({"alternatives": 16}, "'num_hypotheses' must be at most 16; received 17"),
        ({"alternatives": "2"}, "'alternatives': "),
        ({"api_key": 3}, "'api_key': "),
        ({"text": "a"}, "there is no key 'text'"),
    ],
)
def test_bad_requests(change, message, client):
    body = json.dumps({**ASKED, **change})
    response = client.post("/translate", content=body)
    assert response.status_code == 400
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"q=a&source=en", "'target': field required"),
        (b"q=a&source=en&target=es&target=de", "'target': "),
        (b"q=%ff&source=en&target=es", "must be UTF-8"),
        (b"q=\xff&source=en&target=es", "must be UTF-8"),
        (b"q=a&source=en&target=es&alternatives=" + b"9" * 5000, "'alternatives'"),
        (b"q=a&source=en&target=es&alternatives=x", "'alternatives'"),
        (b"", "'q': field required"),
        (b"{", "must be JSON"),
    ],
)
def test_bad_forms(body, message, client):
    response = client.post("/translate", content=body, headers=FORM)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_a_model_that_is_loading(client):
    client.models["upper"].versions = {1: ModelVersion(1)}
    assert client.post("/translate", json={**ASKED, "target": "de"}).status_code == 200
    response = client.post("/translate", json=ASKED)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert response.json() == {"error": "upper is loading; try again later"}


def test_a_key(server):
    """It is in the body, as LibreTranslate's clients send it, or in the header."""
    with server(api_key=KEY) as client:
        for given in ({"json": {**ASKED, "api_key": KEY}}, {"data": None}):
            if "data" in given:
                given = {"content": urlencode({**ASKED, "api_key": KEY})}
                given["headers"] = FORM
            response = client.post("/translate", **given)
            assert response.json() == {"translatedText": "A"}
        headers = {"Authorization": f"Bearer {KEY}"}
        response = client.post("/translate", json=ASKED, headers=headers)
        assert response.json() == {"translatedText": "A"}
        for key in (None, "", KEY[:-1], "\ud800", "ü"):
            body = json.dumps({**ASKED, "api_key": key})
            response = client.post("/translate", content=body)
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert "or `api_key` in its body" in response.json()["error"]
        assert client.get("/languages").status_code == 200
