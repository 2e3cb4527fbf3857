import asyncio
import gzip
import json

import pytest
from starlette.testclient import TestClient

from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.rest import Failure, Signature, TensorSpec
from keras_transformer_runtime.serving.served_model import ModelVersion, ServedModel
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once

TEXT, SCORE = TensorSpec("string", 1), TensorSpec("float32", 1)
SIGNATURES = {"serving_default": Signature({"text": TEXT}, {"text": TEXT})}
PREDICT = "/v1/models/upper:predict"


class Replicas:
    """Computes upper case; some words fail, wait or are refused."""

    slots = 1
    signatures = SIGNATURES
    metadata = {"signature_def": {"signature_def": {}}}

    async def predict(self, signature, requests):
        texts = [text for request in requests for text in request["text"]]
        if "fail" in texts:
            raise OSError("a secret of the server")
        if "sleep" in texts:
            await asyncio.Event().wait()
        if signature == "constrained":
            return [self._constrained(**request) for request in requests]
        return [self._answer(request["text"]) for request in requests]

    async def running(self):
        return 2

    def _constrained(self, text, prefix, constraints):
        assert prefix == [""] * len(text)
        pairs = zip(text, constraints, strict=True)
        return {
            "text": [[f"{t.upper()}+{found}", ""] for t, found in pairs],
            "score": [[-2.0, None]] * len(text),
            "truncated": [[False, False]] * len(text),
        }

    def _answer(self, texts):
        if "broken" in texts:
            return Failure("the model computes NaN")
        if "refuse" in texts:
            return "`text` must be nice"
        return {
            "score": [-1.0] * len(texts),
            "text": [t.upper() for t in texts],
            "truncated": [len(t) > 20 for t in texts],
        }


class Writer(Replicas):
    """Continues a prompt with its letters in reverse, two in each piece."""

    signatures = {"continue": Signature({}, {})}

    async def predict(self, signature, requests):
        assert signature == "continue"
        return [await self._piece(request) for request in requests]

    async def _piece(self, request):
        (text,), (state,), (seed,) = request["text"], request["state"], request["seed"]
        if text == "sleep":
            await asyncio.Event().wait()
        if text == "refuse" or (text == "refuse later" and state):
            return "`text` must be nice"
        if text == "fail later" and state:
            raise OSError("a secret of the server")
        written = text[::-1][: len(state.split()) + 2]
        return {
            "text": [written.replace("é", "\ufffd") if seed == 1 else written],
            "state": [" ".join(written)],
            "length": [len(written)],
            "done": [int(len(written) == len(text))],
        }


def make_model(name, options):
    model = ServedModel(name, options, cluster=None)
    replicas = Writer() if name == "writer" else Replicas()
    batcher = Batcher(replicas.predict, 1, 4, options.max_waiting)
    model.versions[3] = ModelVersion(3)
    model.versions[3].set_loaded(replicas, batcher)
    return model


@pytest.fixture
def client(tmp_path, request):
    folder = {"folder": tmp_path}
    options = make_server_options(
        models={
            "upper": folder,
            "writer": folder,
            "sentences": {**folder, "split_sentences": "en", "max_waiting": 5},
            "empty": folder,
            "busy": {**folder, "max_waiting": 1},
        },
        max_body_bytes=300,
        timeout_seconds=getattr(request, "param", 60),
    )
    models = {name: make_model(name, found) for name, found in options.models.items()}
    models["empty"].versions.clear()
    with TestClient(
        Application(models, options).asgi,
        base_url="http://127.0.0.1",
        raise_server_exceptions=False,
    ) as client:
        client.models = models
        yield client


def test_predict(client):
    rows = [{"score": -1.0, "text": text, "truncated": False} for text in "AÜ"]
    for path in (PREDICT, "/v1/models/upper/versions/3:predict"):
        response = client.post(path, json={"instances": ["a", "ü"]})
        assert response.status_code == 200
        assert response.json() == {"predictions": rows}
    response = client.post(PREDICT, json={"inputs": ["a"]})
    assert response.json() == {
        "outputs": {"score": [-1.0], "text": ["A"], "truncated": [False]}
    }


def test_terms(tmp_path):
    (tmp_path / "terms.tsv").write_text("York\tYorck\nmy cat\tKater\n")
    terms = {"folder": tmp_path, "dictionary": tmp_path / "terms.tsv"}
    options = make_server_options(
        models={"terms": terms, "both": {**terms, "split_sentences": "en"}}
    )
    models = {name: make_model(name, found) for name, found in options.models.items()}
    url, path = "http://127.0.0.1", "/v1/models/{}:predict"
    with TestClient(Application(models, options).asgi, base_url=url) as client:

        def outputs(name, *texts):
            body = {"inputs": [*texts]}
            return client.post(path.format(name), json=body).json()["outputs"]

        assert outputs("terms", "In York.", "my York, my cat", "my dog", "York") == {
            "score": [-2.0, -2.0, -1.0, -2.0],
            "truncated": [False] * 4,
            "text": [
                *("IN YORK.+Yorck", "MY YORK, MY CAT+Yorck\tKater"),
                *("MY DOG", "YORK+Yorck"),
            ],
        }
        assert outputs("terms", "a") == {
            "score": [-1.0],
            "text": ["A"],
            "truncated": [False],
        }
        listed = client.get("/v1/models").json()["models"]
        assert [model["terms"] for model in listed] == [2, 2]
        assert outputs("both", "In York.  No.", "") == {
            "score": [-3.0, 0],
            "truncated": [False, False],
            "text": ["IN YORK.+Yorck  NO.", ""],
        }


def test_sentences(client):
    texts = ["It rains. Dr. Jones sleeps all the day.", "", "One"]
    response = client.post("/v1/models/sentences:predict", json={"inputs": texts})
    assert response.json()["outputs"] == {
        "score": [-2.0, 0, -1.0],
        "truncated": [True, False, False],
        "text": [text.upper() for text in texts],
    }


def test_the_number_of_sentences_is_limited(client):
    path = "/v1/models/sentences:predict"
    response = client.post(path, json={"inputs": ["It rains. " * 5]})
    assert response.status_code == 200
    response = client.post(path, json={"inputs": ["It rains. " * 3] * 2})
    assert response.status_code == 400
    assert "at most 5 sentences; received 6" in response.json()["error"]


def test_a_disconnect_cancels_the_computation(client):
    body = b'{"instances": ["sleep"]}'
    incoming = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": []}
    sent = []

    async def receive():
        return incoming.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(client.app({**scope, "query_string": b""}, receive, send))
    assert sent[0]["status"] == 400
    assert b"the client has disconnected" in sent[1]["body"]


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        (PREDICT, b"{", 400, "must be JSON"),
        (PREDICT, b'{"instances": ["refuse"]}', 400, "`text` must be nice"),
        (PREDICT, b'{"instances": ["' + b"a" * 300 + b'"]}', 413, "300 bytes"),
        (PREDICT, b'{"instances": ["fail"]}', 500, "see the log"),
        (PREDICT, b'{"instances": ["broken"]}', 500, "the model computes NaN"),
        ("/v1/models/none:predict", b"", 404, "model 'none' does not exist; models: "),
        ("/v1/models/empty:predict", b"", 404, "empty is not available"),
        ("/v1/models/upper/versions/9:predict", b"", 404, "version 9, is not av"),
        ("/v1/models/upper/versions/x:predict", b"", 400, "must be a number"),
        (f"/v1/models/upper/versions/{2**63 - 1}:predict", b"", 404, "is not av"),
        ("/v1/models/upper:classify", b"", 404, "Not Found"),
        ("/v1/models/..%2f..%2fetc:predict", b"", 404, "Not Found"),
        ("/v1/models/upper/versions/..:predict", b"", 400, "must be a number"),
        ("/etc/passwd", b"", 404, "Not Found"),
    ],
)
def test_refused_requests(path, content, status, message, client):
    response = client.post(path, content=content)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert message in response.json()["error"]
    assert "secret" not in response.text


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/ready", "/metrics", "/v1/models", "/v1/models/upper"),
        *("/monitoring/prometheus/metrics", "/v1/models/upper/metadata"),
        *("/v1/models/upper/versions/3", "/v1/models/upper/versions/3/metadata"),
    ],
)
def test_a_path_with_a_line_break_is_another_path(path, client):
    assert client.get(path).status_code in (200, 503)
    for end in ("%0a", "%0A", "%0d%0a", "%0a%0a", "%0b"):
        assert client.get(path + end).status_code in (400, 404)
    assert client.post(PREDICT + "%0a", json={"inputs": ["a"]}).status_code == 404


def test_methods(client):
    assert client.get(PREDICT).status_code == 405
    assert client.post("/v1/models/upper").status_code == 405


def test_a_body_without_content_length_is_limited(client):
    chunks = (b"a" * 100 for _ in range(4))
    assert client.post(PREDICT, content=chunks).status_code == 413


@pytest.mark.parametrize("length", [b"\xb2", b"-1", b"1e2", b"9" * 5000])
def test_a_content_length_that_is_no_number(length, client):
    body = b'{"instances": ["one"]}'
    found = client.post(PREDICT, content=body, headers={"Content-Length": length})
    assert found.status_code == 413


def post_encoded(client, body, encoding="gzip"):
    return client.post(PREDICT, content=body, headers={"Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "", "x" * 5000])
def test_an_unknown_encoding_is_refused(encoding, client):
    response = post_encoded(client, b"x", encoding)
    assert response.status_code == 415
    assert "must be gzip or identity" in response.json()["error"]


@pytest.mark.parametrize("encoding", ["gzip", "GZip", "x-gzip", "IDENTITY"])
def test_an_encoded_body(encoding, client):
    body = b'{"inputs": ["a"]}'
    if encoding != "IDENTITY":
        body = gzip.compress(body)
    assert post_encoded(client, body, encoding).json()["outputs"]["text"] == ["A"]


def test_the_unpacked_body_is_limited(client):
    """Three hundred bytes pass, one more does not, however small it is packed."""
    body = b'{"inputs": ["a"]}'
    for size, status in ((300, 200), (301, 413), (10_000_000, 413)):
        packed = gzip.compress(body.ljust(size))
        assert len(packed) < 300 or size > 301
        assert post_encoded(client, packed).status_code == status


PACKED = gzip.compress(b'{"inputs": ["a"]}', mtime=0)


@pytest.mark.parametrize(
    "body", [b"x", b"", PACKED[:-1], PACKED[:9], PACKED + b"x", PACKED + PACKED]
)
def test_a_damaged_gzip_body(body, client):
    response = post_encoded(client, body)
    assert response.status_code == 400
    assert "one complete gzip stream" in response.json()["error"]


def test_overload_is_refused_immediately(client):
    batcher = client.models["busy"].versions[3].loaded.batcher
    batcher.waiting = 1
    response = client.post("/v1/models/busy:predict", json={"instances": ["a"]})
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"


def test_requests_after_an_error_succeed(client):
    for text in ("refuse", "fail", "a"):
        response = client.post(PREDICT, json={"instances": [text]})
    assert response.json()["predictions"][0]["text"] == "A"


def test_status_and_metadata(client):
    state = {
        "version": "3",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("/v1/models/upper", "/v1/models/upper/versions/3"):
        assert client.get(path).json() == {"model_version_status": [state]}
    assert client.get("/v1/models/upper/versions/4").status_code == 404
    assert client.get("/v1/models/upper/metadata").json() == {
        "model_spec": {"name": "upper", "signature_name": "", "version": "3"},
        "metadata": Replicas.metadata,
    }
    upper, _, sentences, empty, _ = client.get("/v1/models").json()["models"]
    ready = {"ready": True, "version": 3, "signatures": ["serving_default"]}
    compiled = {"compiled": True}
    plain = {"splits_sentences": False, "terms": 0}
    assert upper == {"name": "upper", **plain, **ready, **compiled}
    assert sentences["splits_sentences"]
    assert empty == {"name": "empty", **plain, "ready": False}


def test_health(client):
    assert client.get("/health").status_code == 200
    response = client.get("/ready")
    assert response.status_code == 503
    assert response.json()["models"]["empty"] is False
    del client.models["empty"]
    assert client.get("/ready").status_code == 200


def test_metrics(client):
    for text in ("a", "refuse", "b"):
        client.post(PREDICT, json={"instances": [text, text]})
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        lines = client.get(path).text.splitlines()
        prefix = "keras_transformer_"
        assert prefix + 'requests_total{model="upper",status="200"} 2.0' in lines
        assert prefix + 'requests_total{model="upper",status="400"} 1.0' in lines
        assert prefix + 'texts_total{model="upper"} 4.0' in lines
        assert prefix + 'request_seconds_count{model="upper"} 3.0' in lines
        assert prefix + 'replicas{model="upper",version="3"} 2.0' in lines
        assert prefix + 'model_ready{model="empty"} 0.0' in lines


def test_metrics_without_a_response_of_the_cluster(client, monkeypatch):
    async def running(self):
        raise KeyError("upper-3")

    monkeypatch.setattr(Replicas, "running", running)
    text = client.get("/metrics").text
    assert "keras_transformer_replicas{" not in text
    assert 'keras_transformer_model_ready{model="upper"} 1.0' in text


STREAM = "/v1/models/writer:stream"


def events(response):
    """Returns the types and the data of server-sent events."""
    found = []
    for block in response.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event"), json.loads(fields["data"])))
    return found


def test_a_stream_has_the_pieces_of_a_text(client):
    response = client.post(STREAM, json={"prompt": "abcde"})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    texts = [(None, {"text": text}) for text in ("ed", "cb", "a")]
    assert events(response) == [*texts, ("end", {})]


def test_a_stream_ends_at_its_limit(client):
    response = client.post(STREAM, json={"prompt": "abcde", "max_length": 3})
    assert [data.get("text") for _, data in events(response)] == ["ed", "cb", None]


def test_an_incomplete_character_waits(client):
    response = client.post(STREAM, json={"prompt": "abéd", "seed": 1})
    assert [data.get("text") for _, data in events(response)] == ["d", "\ufffdba", None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "the body must have 'prompt'"),
        ({"prompt": "a", "temperature": 1}, "received ['prompt', 'temperature']"),
        ({"prompt": 3}, "'prompt' must contain strings"),
        ({"prompt": "a" * 20_000}, "body"),
        ({"prompt": "a", "max_length": 0}, "'max_length' must be an integer from 1"),
        ({"prompt": "a", "seed": 2**31}, "'seed' must be an integer"),
        ({"prompt": "refuse"}, "`text` must be nice"),
    ],
)
def test_bad_streams(client, body, message):
    response = client.post(STREAM, json=body)
    assert response.status_code in (400, 413)
    assert message in response.json()["error"]


def test_streams_of_other_models(client):
    response = client.post("/v1/models/upper:stream", json={"prompt": "a"})
    assert response.status_code == 400
    assert "upper cannot stream" in response.json()["error"]
    assert (
        client.post("/v1/models/none:stream", json={"prompt": "a"}).status_code == 404
    )


def test_failures_of_a_stream(client):
    response = client.post(STREAM, json={"prompt": "refuse later"})
    error = ("error", {"error": "`text` must be nice"})
    assert events(response) == [(None, {"text": "re"}), error]
    response = client.post(STREAM, json={"prompt": "fail later"})
    assert events(response)[-1] == ("error", {"error": "the model failed"})
    assert "secret" not in response.text


@pytest.mark.parametrize("client", [0.3], indirect=True)
def test_an_answer_that_takes_too_long(client):
    response = client.post(PREDICT, json={"instances": ["sleep"]})
    assert response.status_code == 504
    assert "no response within 0.3 s" in response.json()["error"]
    assert client.post(STREAM, json={"prompt": "sleep"}).status_code == 504
