"""The routes, with models without weights."""

import asyncio
import gzip
import json
import threading

import pytest
from fake_models import FakeEncoder, FakeModel, client_of, served

from keras_transformer_runtime.serving.completions import Completion
from keras_transformer_runtime.serving.loaded_model import GENERATING, Progress
from keras_transformer_runtime.serving.rest import Signature
from keras_transformer_runtime.serving.served_model import ModelVersion
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once("torch")

PREDICT = "/v1/models/upper:predict"


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
    fakes = {name: FakeModel(name == "writer") for name in options.models}
    models = {name: served(name, options.models[name], fakes[name]) for name in fakes}
    models["empty"].versions.clear()
    with client_of(models, options) as client:
        client.models, client.fakes = models, fakes
        yield client
        for fake in fakes.values():
            fake.engine.awake.set()


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
    terms["languages"] = ["en", "de"]
    options = make_server_options(
        models={"terms": terms, "both": {**terms, "split_sentences": "en"}}
    )
    signatures = {**GENERATING, "constrained": Signature({}, {})}
    models = {
        name: served(name, own, FakeModel(signatures=signatures))
        for name, own in options.models.items()
    }
    with client_of(models, options) as client:

        def outputs(name, *texts):
            path, body = f"/v1/models/{name}:predict", {"inputs": [*texts]}
            return client.post(path, json=body).json()["outputs"]

        assert outputs("terms", "In York.", "my York, my cat", "my dog", "York") == {
            "score": [-2.0, -2.0, -1.0, -2.0],
            "truncated": [False] * 4,
            "text": [
                *("IN YORK.+Yorck", "MY YORK, MY CAT+Yorck\tKater"),
                *("MY DOG", "YORK+Yorck"),
            ],
        }
        assert outputs("terms", "a")["text"] == ["A"]
        listed = client.get("/v1/models").json()["models"]
        assert [model["terms"] for model in listed] == [2, 2]
        assert outputs("both", "In York.  No.", "") == {
            "score": [-3.0, 0],
            "truncated": [False, False],
            "text": ["IN YORK.+Yorck  NO.", ""],
        }
        body = {"q": ["In York.", "a"], "source": "en", "target": "de"}
        found = client.post("/translate", json={**body, "alternatives": 1}).json()
        assert found["translatedText"] == ["IN YORK.+Yorck", "A"]


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
    fake, path = client.fakes["busy"], "/v1/models/busy:predict"
    found = []

    def ask(text):
        found.append(client.post(path, json={"instances": [text]}).status_code)

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("sleep", "a")]
    batcher = client.models["busy"].versions[3].loaded.batcher
    for number, thread in enumerate(threads):
        thread.start()
        while not fake.engine.calls or batcher.waiting < number:
            pass
    for body in ({"instances": ["b"]}, {"instances": ["b"], "options": {"seed": 1}}):
        response = client.post(path, json=body)
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "1"
        assert response.json() == {"error": "1 texts are waiting; try again later"}
    fake.engine.awake.set()
    for thread in threads:
        thread.join(20)
    assert found == [200, 200]


def test_a_body_in_many_parts(client):
    """The wait for a disconnect takes none of them."""
    body = b'{"instances": ["abc"]}'
    parts = [body[place : place + 1] for place in range(len(body))]
    scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": []}
    sent = []

    async def receive():
        await asyncio.sleep(0)
        if not parts:
            await asyncio.Event().wait()
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    asyncio.run(client.app({**scope, "query_string": b""}, receive, send))
    assert b'"text":"ABC"' in sent[1]["body"]


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
        assert client.get(path).json()["model_version_status"] == [state]
    assert client.get("/v1/models/upper/versions/4").status_code == 404
    assert client.get("/v1/models/upper/metadata").json() == {
        "model_spec": {"name": "upper", "signature_name": "", "version": "3"},
        "metadata": client.fakes["upper"].metadata(),
    }
    upper, writer, sentences, empty, _ = client.get("/v1/models").json()["models"]
    expected = {
        **{"name": "upper", "splits_sentences": False, "terms": 0},
        **{"ready": True, "version": 3, "signatures": ["nbest", "serving_default"]},
        **{"engine": "fake", "task": "generate", "is_language_model": False},
        **{"languages": None, "compiling": 0},
    }
    assert upper.items() >= expected.items()
    assert writer["is_language_model"] and sentences["splits_sentences"]
    assert empty == {
        **{"name": "empty", "splits_sentences": False, "terms": 0},
        "ready": False,
    }


def test_health(client):
    assert client.get("/health").status_code == 200
    response = client.get("/ready")
    assert response.status_code == 503
    ready = {name: name != "empty" for name in client.models}
    assert response.json()["models"] == ready and not response.json()["ready"]
    del client.models["empty"]
    client.fakes["upper"].states = [Progress(7)]
    response = client.get("/ready")
    assert response.status_code == 200
    assert response.json()["compiling"]["upper"] == 7


def test_metrics(client):
    for text in ("a", "refuse", "b"):
        client.post(PREDICT, json={"instances": [text, text]})
    body = {"model": "writer", "prompt": ["ab", "refuse"], "stream": True}
    assert client.post("/v1/completions", json=body).status_code == 400
    body["prompt"] = ["ab", "cd", "e"]
    assert client.post("/v1/completions", json=body).status_code == 200
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        lines = client.get(path).text.splitlines()
        prefix = "keras_transformer_"
        assert prefix + 'requests_total{model="upper",status="200"} 2.0' in lines
        assert prefix + 'requests_total{model="upper",status="400"} 1.0' in lines
        assert prefix + 'texts_total{model="upper"} 4.0' in lines
        assert prefix + 'texts_total{model="writer"} 3.0' in lines
        assert prefix + 'request_seconds_count{model="upper"} 3.0' in lines
        assert prefix + 'waiting_texts{model="upper"} 0.0' in lines
        assert prefix + 'model_ready{model="empty"} 0.0' in lines


def options_of(client, **body):
    """Returns the options with which the engine computes a request."""
    response = client.post(PREDICT, json={"instances": ["a"], **body})
    assert response.status_code == 200, response.text
    return client.fakes["upper"].engine.calls[-1][1]


def test_options_of_requests(client):
    engine = client.fakes["upper"].engine
    assert options_of(client) == engine.options
    assert options_of(client, options={}) == engine.options
    given = {"num_beams": 2, "max_length": 9, "stop": ["x"], "length_penalty": 1}
    expected = engine.options.with_given(**given)
    assert options_of(client, options=given) == expected
    greedy = options_of(client, options={"temperature": 0, "top_p": 0.5})
    assert (greedy.num_beams, greedy.samples) == (1, False)
    sampled = options_of(client, options={"temperature": 0.5, "seed": 3})
    assert (sampled.samples, sampled.temperature, sampled.seed) == (True, 0.5, 3)
    rows = {"signature_name": "nbest", "instances": [{"text": "a", "seed": 5}]}
    assert options_of(client, **rows, options={"temperature": 0.5}).seed == 5
    assert options_of(client, **rows).seed is None  # It does not sample.
    rows["instances"] = [{"text": "a", "seed": 5}, {"text": "b", "seed": 7}]
    body = {**rows, "options": {"temperature": 0.5}}
    response = client.post(PREDICT, json=body)
    assert response.status_code == 400
    assert "each 'seed' must be the same" in response.json()["error"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 17}, "'num_beams' must be at most 16; received 17"),
        ({"num_hypotheses": 17}, "'num_hypotheses' must be at most 16"),
        ({"max_length": 2049}, "'max_length' must be at most 2048"),
        ({"min_length": 2049}, "'min_length' must be at most 2048"),
        ({"min_length": 5, "max_length": 4}, "`min_length` must be at most"),
        ({"num_beams": 2, "num_hypotheses": 3}, "`num_hypotheses` must be at most"),
        ({"num_beams": 2, "temperature": 0.5}, "`temperature` is for sampling"),
        ({"temperature": 0.5, "seed": 2**31}, "`seed` must be an int from"),
        ({"stop": [""]}, "`stop` must be texts that are not empty"),
        ({"temperature": 1e-40}, "'temperature"),
        ({"top_k": 10**30}, "'top_k': input should be less than"),
        ({"top_k": 3}, "`top_k` must be None"),  # an engine that has no such option
    ],
)
def test_bad_options(given, message, client):
    response = client.post(PREDICT, json={"instances": ["a"], "options": given})
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert client.fakes["upper"].engine.calls == []


def test_requests_of_different_options_have_their_own_batches(client):
    engine = client.fakes["upper"].engine
    found = []

    def ask(text, **options):
        body = {"instances": [text], "options": options}
        [row] = client.post(PREDICT, json=body).json()["predictions"]
        found.append(row["text"])

    asked = [("sleep", {}), ("a", {}), ("b", {"num_beams": 2}), ("c", {})]
    threads = [threading.Thread(target=ask, args=(x,), kwargs=o) for x, o in asked]
    batcher = client.models["upper"].versions[3].loaded.batcher
    for number, thread in enumerate(threads):
        thread.start()
        while not engine.calls or batcher.waiting < number:
            pass
    engine.awake.set()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == ["A", "B", "C", "SLEEP"]
    batches = [(texts, options.num_beams) for texts, options in engine.calls]
    assert batches == [(["sleep"], 4), (["a", "c"], 4), (["b"], 2)]


@pytest.mark.parametrize("client", [0.3], indirect=True)
def test_a_response_that_takes_too_long(client):
    response = client.post(PREDICT, json={"instances": ["sleep"]})
    assert response.status_code == 504
    assert "no response within 0.3 s" in response.json()["error"]
    for stream in (False, True):
        body = {"model": "writer", "prompt": "sleep", "stream": stream}
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 504
        assert response.json()["error"]["type"] == "server_error"
    assert client.models["writer"].versions[3].loaded.batcher.waiting == 0


def stream(client, prompt, **given):
    """Returns the response of a stream, and the data of its events."""
    body = {"model": "writer", "prompt": prompt, "stream": True, **given}
    response = client.post("/v1/completions", json=body)
    events = response.text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    return response, [event.removeprefix("data: ") for event in events]


def test_a_stream_has_the_pieces_of_a_text(client):
    response, events = stream(client, "abcdé")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    assert "".join(each["text"] for each in choices) == "édcba"
    reasons = [each["finish_reason"] for each in choices]
    assert reasons == [*[None] * (len(choices) - 1), "stop"]


@pytest.mark.parametrize(
    ("prompt", "status", "message"),
    [
        ("refuse", 400, "`text` must be nice"),
        ("broken", 500, "the model computes NaN"),
        ("a" * 41, 400, "at most max_source_length=40 tokens; received 41"),
    ],
)
def test_a_stream_without_a_first_piece(prompt, status, message, client):
    body = {"model": "writer", "prompt": prompt, "stream": True}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError("a secret"), "the model failed"), (ValueError("not nice"), "not nice")],
)
def test_a_failure_in_the_middle_of_a_stream(error, message, client, monkeypatch):
    sent, piece = threading.Event(), Completion.piece

    def generate(texts, options, on_text=None, **others):
        on_text(0, "begun")
        assert sent.wait(20)
        raise error

    def send(self, *arguments):
        sent.set()
        return piece(self, *arguments)

    monkeypatch.setattr(client.fakes["writer"].engine, "generate", generate)
    monkeypatch.setattr(Completion, "piece", send)
    response, events = stream(client, "a")
    assert response.status_code == 200
    assert json.loads(events[0])["choices"][0]["text"] == "begun"
    assert json.loads(events[-1])["error"]["message"] == message
    assert "secret" not in response.text


def test_a_disconnect_ends_a_stream(client):
    """The engine learns of it with the next token."""
    engine, pieces, ended = client.fakes["writer"].engine, [], threading.Event()

    def generate(texts, options, on_text=None, **others):
        while not on_text(0, "x" * len(pieces)):
            pieces.append("x")
        ended.set()
        return [[]]

    engine.generate = generate
    body = json.dumps({"model": "writer", "prompt": "a", "stream": True}).encode()
    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    scope["asgi"] = {"spec_version": "2.3"}

    async def main():
        incoming, sent = [{"type": "http.request", "body": body}], []

        async def receive():
            if incoming:
                return incoming.pop()
            while len(sent) < 5:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await client.app({**scope, "query_string": b""}, receive, send)
        assert await asyncio.to_thread(ended.wait, 20)
        return sent

    sent = asyncio.run(main())
    assert sent[0]["status"] == 200 and b'"text": "x' in sent[1]["body"]


def test_translate_is_not_a_completion(client):
    body = {"model": "upper", "prompt": "a"}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "translates texts. Use `/translate` or `/v1/models/upper:pr" in message


@pytest.fixture
def films(tmp_path):
    """A client of a server of a classifier and a model that translates."""
    given = {"folder": tmp_path}
    models = {"films": given, "upper": given | {"languages": ("en", "de")}}
    options = make_server_options(models=models)
    fakes = {"films": FakeEncoder("classify", ("bad", "good")), "upper": FakeModel()}
    models = {name: served(name, options.models[name], fakes[name]) for name in fakes}
    with client_of(models, options) as client:
        client.fakes = fakes
        yield client


def test_the_classes_of_texts(films):
    path = "/v1/models/films:predict"
    good = {"label": "good", "score": 0.9, "truncated": False}
    good |= {"classes": ["bad", "good"], "probabilities": [0.1, 0.9]}
    response = films.post(path, json={"instances": ["a good one"]})
    assert response.json() == {"predictions": [good]}
    columns = films.post(path, json={"inputs": {"text": ["good", "bad"]}}).json()
    assert columns["outputs"]["label"] == ["good", "bad"]
    assert films.fakes["films"].calls[-1] == ["good", "bad"]
    refused = films.post(path, json={"instances": ["refuse"]})
    assert (refused.status_code, refused.json()) == (
        400,
        {"error": "`text` must be nice"},
    )
    for body, message in (
        ({"options": {"num_beams": 2}}, "the signature 'serving_default' has no 'opt"),
        ({"signature_name": "nbest"}, "must be one of ['serving_default']; received"),
    ):
        response = films.post(path, json={"instances": ["a"], **body})
        assert response.status_code == 400
        assert message in response.json()["error"]
    assert 'texts_total{model="films"} 3.0' in films.get("/metrics").text


def test_a_classifier_generates_no_texts(films):
    body = {"model": "films", "prompt": "a"}
    for stream in (False, True):
        response = films.post("/v1/completions", json={**body, "stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["message"] == (
            "the model must generate texts; its task is 'classify'. Use "
            "`/v1/models/NAME:predict`"
        )
    assert [each["code"] for each in films.get("/languages").json()] == ["en"]
    asked = {"q": "a", "source": "auto", "target": "de"}
    assert films.post("/translate", json=asked).json() == {"translatedText": "A"}
    assert films.post("/translate", json={**asked, "target": "fr"}).status_code == 400


def test_a_list_of_models_with_different_tasks(films):
    found = films.get("/v1/models").json()
    assert [each["id"] for each in found["data"]] == ["films", "upper"]
    first, second = found["models"]
    assert first == {
        **{"name": "films", "ready": True, "version": 3, "task": "classify"},
        **{"splits_sentences": False, "terms": 0, "languages": None, "compiling": 0},
        **{"engine": "saved_model", "class_names": ["bad", "good"]},
        **{"multi_label": False, "max_length": 12},
        "signatures": ["serving_default"],
    }
    assert second["task"] == "generate" and second["languages"] == ["en", "de"]
    assert films.get("/ready").json()["compiling"] == {"films": 0, "upper": 0}


def test_a_version_that_has_failed(client):
    version = client.models["empty"].versions[1] = ModelVersion(1)
    path = "/v1/models/empty"
    assert client.post(path + ":predict", json={"inputs": ["a"]}).status_code == 503
    version.state, version.error = "END", "it has no such op"
    assert client.post(path + ":predict", json={"inputs": ["a"]}).status_code == 404
    [state] = client.get(path).json()["model_version_status"]
    assert state["state"] == "END"
    assert state["status"]["error_message"] == "it has no such op"
    models = client.get("/v1/models").json()["models"]
    assert [model.get("error") for model in models][3] == "it has no such op"


def test_the_page(client):
    response = client.get("/")
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "<html" in response.text
