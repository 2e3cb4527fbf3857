"""`:predict` with small models for CTranslate2, compared with those of Keras."""

import concurrent.futures

import numpy as np
import pytest
from fake_models import client_of, served

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer_runtime.serving.loaded_model import CTranslate2Model
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once("torch")

# The outputs of all but the first end before the limit.
TEXTS = ["abc", "", "deadbeef", " \t", "\u200b\u2060\u00ad", "cafe", "feed"]
PATH = "/v1/models/{}:predict"


@pytest.fixture(scope="module")
def client(translator_folder, language_model_folder):
    folders = {"en-de": translator_folder, "letters": language_model_folder}
    models = {name: {"folder": folder} for name, folder in folders.items()}
    models["limited"] = {"folder": translator_folder, "max_tokens": 13}
    options = make_server_options(models=models)
    loaded = {
        name: CTranslate2Model(own.folder, 1) for name, own in options.models.items()
    }
    models = {name: served(name, options.models[name], loaded[name]) for name in loaded}
    with client_of(models, options) as client:
        client.loaded = loaded
        yield client


def predict(client, inputs, signature="serving_default", model="en-de", **given):
    body = {"signature_name": signature, "inputs": inputs, **given}
    response = client.post(PATH.format(model), json=body)
    assert response.status_code == 200, response.text
    return response.json()["outputs"]


def test_the_default_signature(client, translator):
    texts, scores, truncated = translator.generate(
        TEXTS, BeamSearch(3, 0.0), return_scores=True, return_truncated=True
    )
    found = predict(client, TEXTS)
    assert found["text"] == texts and texts[0]
    assert found["truncated"] == truncated.tolist() and truncated.sum() == 1
    ended = ~truncated  # The score of the model has the end token of the others too.
    scored = np.array(found["score"])[ended]
    np.testing.assert_allclose(scored, scores[ended], atol=1e-4)
    assert [texts[place] for place in (1, 3, 4)] == ["", "", ""]


def test_nbest(client, translator):
    texts = TEXTS[1:]
    search = BeamSearch(3, 0.0, num_hypotheses=2)
    expected, scores = translator.generate(texts, search, return_scores=True)
    options = {"num_hypotheses": 2}
    found = predict(client, texts, "nbest", options=options)
    assert found["text"] == expected
    np.testing.assert_allclose(found["score"], scores, atol=1e-4)
    assert found["truncated"] == [[False, False]] * len(texts)
    found = predict(client, texts, "nbest")
    assert found["text"] == [[best] for best, _ in expected]


def test_prefixes(client, translator):
    texts, prefixes = ["cafe", "", "feed", "deadbeef"], ["WX", "V", "", "ÄÄ"]
    expected = translator.generate(texts, GreedySearch(), prefix=prefixes)
    columns = {"text": texts, "prefix": prefixes}
    found = predict(client, columns, "nbest", options={"num_beams": 1})
    assert found["text"] == [[text] for text in expected]
    assert expected[0].startswith("WX") and expected[1] == ""


def test_options(client, translator):
    expected = translator.generate(TEXTS, GreedySearch(), max_length=5, min_length=3)
    options = {"num_beams": 1, "max_length": 5, "min_length": 3}
    assert predict(client, TEXTS, options=options)["text"] == expected
    options = {"temperature": 0, "max_length": 5, "min_length": 3}
    assert predict(client, TEXTS, options=options)["text"] == expected
    options["stop"] = [expected[2][1:]]
    assert predict(client, ["deadbeef"], options=options)["text"] == [expected[2][0]]


@pytest.mark.parametrize(
    ("model", "sources", "targets"),
    [
        ("en-de", ["abc", "f", "cafe"], ["UVW", "", "ZZÄZ"]),
        ("letters", ["abc", "", "f"], ["def", "abba", ""]),
    ],
)
def test_score(model, sources, targets, client, translator, language_model):
    owner = translator if model == "en-de" else language_model
    expected = owner.score(sources, targets)
    columns = {"source": sources, "target": targets}
    found = predict(client, columns, "score", model)
    np.testing.assert_allclose(found["score"], expected.scores, atol=1e-4)
    assert found["tokens"] == [[*target, "</s>"] for target in targets]
    for own, scores in zip(found["token_scores"], expected.token_scores, strict=True):
        np.testing.assert_allclose(own, scores, atol=1e-4)


@pytest.mark.parametrize("model", ["en-de", "limited"])
def test_concurrent_requests(model, client, translator):
    """Their batches have the texts of several requests, at most 13 tokens of one."""
    texts = [text * count for text in ("cafe", "feed") for count in (1, 1, 3, 1, 2)]
    expected = translator.generate(texts, BeamSearch(3, 0.0))
    engine, sizes = client.loaded[model].engine, []
    generate = engine.generate

    def record(batch, *arguments, **others):
        tokens = [length + 1 for length in map(len, batch)]
        sizes.append((len(batch), len(batch) * max(tokens)))
        return generate(batch, *arguments, **others)

    engine.generate = record
    try:
        with concurrent.futures.ThreadPoolExecutor(10) as threads:
            asked = [threads.submit(predict, client, [x], model=model) for x in texts]
            found = [each.result()["text"][0] for each in asked]
    finally:
        engine.generate = generate
    assert found == expected
    assert sum(count for count, _ in sizes) == len(texts)
    if model == "limited":
        assert all(count == 1 or tokens <= 13 for count, tokens in sizes)


def test_an_invalid_text_fails_only_its_request(client):
    """A prefix that is too long is found by the engine, in a batch with others."""
    rows = [{"text": "cafe", "prefix": prefix} for prefix in ("", "U" * 17, "W", "X")]

    def ask(row):
        body = {"signature_name": "nbest", "instances": [row]}
        return client.post(PATH.format("en-de"), json=body)

    def texts(response):
        return [row["text"] for row in response.json().get("predictions", ())]

    alone = [ask(row) for row in rows]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        responses = [*threads.map(ask, rows)]
    assert [response.status_code for response in responses] == [200, 400, 200, 200]
    assert [*map(texts, responses)] == [*map(texts, alone)]
    assert "`prefix` must be shorter" in responses[1].json()["error"]


def test_the_length_of_a_text_is_limited(client):
    body = {"instances": ["a" * 37]}
    response = client.post(PATH.format("en-de"), json=body)
    assert response.status_code == 400
    message = "each text must have at most max_source_length=37 tokens; received 38"
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("signature", "given", "message"),
    [
        ("score", {"options": {"num_beams": 2}}, "'score' has no 'options'"),
        ("nbest", {"options": {"temperature": 1, "seed": 3}}, "`seed` must"),
        ("nbest", {"options": {"top_k": 12, "temperature": 1}}, "vocabulary size"),
        ("attention", {}, "'signature_name' must be one of"),
    ],
)
def test_refused_requests(signature, given, message, client):
    inputs = {"text": ["a"]}
    if signature == "score":
        inputs = {"source": ["a"], "target": ["U"]}
    body = {"signature_name": signature, "inputs": inputs, **given}
    response = client.post(PATH.format("en-de"), json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_a_seed_with_an_engine_that_has_none(client):
    row = {"text": "a", "seed": 5}
    body = {"signature_name": "nbest", "instances": [row]}
    assert client.post(PATH.format("en-de"), json=body).status_code == 200
    body["options"] = {"temperature": 0.5}
    response = client.post(PATH.format("en-de"), json=body)
    assert response.status_code == 400
    assert "`seed` must" in response.json()["error"]


def test_metadata(client):
    """Each input and output has a dtype and a rank."""
    found = client.get("/v1/models/en-de/metadata").json()["metadata"]
    signatures = found["signature_def"]["signature_def"]
    assert sorted(signatures) == ["nbest", "score", "serving_default"]

    def types(tensors):
        return {
            name: (info["dtype"], len(info["tensor_shape"]["dim"]))
            for name, info in tensors.items()
        }

    nbest = signatures["nbest"]
    assert types(nbest["inputs"]) == {
        **{"text": ("DT_STRING", 1), "prefix": ("DT_STRING", 1)},
        "seed": ("DT_INT32", 1),
    }
    assert types(nbest["outputs"]) == {
        **{"text": ("DT_STRING", 2), "score": ("DT_FLOAT", 2)},
        "truncated": ("DT_BOOL", 2),
    }
