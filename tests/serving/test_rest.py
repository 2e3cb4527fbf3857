import base64
import json
import random

import pytest

from keras_transformer_runtime.serving.requests import OptionFields, RequestError
from keras_transformer_runtime.serving.rest import (
    PredictRequest,
    Signature,
    TensorSpec,
    format_response,
    parse,
)
from keras_transformer_runtime.serving.server_options import ServerOptions

pytestmark = pytest.mark.once("torch")

TEXT, SCORE = TensorSpec("string", 1), TensorSpec("float32", 1)
OUTPUTS = {"text": TEXT, "score": SCORE}
SIGNATURES = {
    "serving_default": Signature({"text": TEXT}, OUTPUTS),
    "nbest": Signature(
        {
            "text": TEXT,
            "prefix": TensorSpec("string", optional=True),
            "seed": TensorSpec("int32", optional=True),
        },
        OUTPUTS,
    ),
    "pair": Signature({"source": TEXT, "target": TEXT}, OUTPUTS),
    "tokens": Signature({"token_ids": TensorSpec("int32", 2)}, OUTPUTS),
    "weigh": Signature({"weights": TensorSpec("float32", 1)}, OUTPUTS),
}


@pytest.fixture(scope="module")
def limits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return ServerOptions(
        models={"m": {"folder": folder}}, max_texts=5, max_characters=7
    )


def body(**request):
    return json.dumps(request).encode()


# The documented forms of TensorFlow Serving.
@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        ({"instances": ["a", "b"]}, (["a", "b"], True)),
        ({"instances": [{"text": "a"}]}, (["a"], True)),
        ({"instances": [{"b64": "w7w="}]}, (["ü"], True)),
        ({"instances": [{"text": {"b64": "w7w="}}]}, (["ü"], True)),
        ({"inputs": ["a", "b"]}, (["a", "b"], False)),
        ({"inputs": {"text": ["a"]}}, (["a"], False)),
        ({"inputs": {"text": [{"b64": ""}]}}, ([""], False)),
    ],
)
def test_rows_and_columns(request_body, expected, limits):
    texts, by_rows = expected
    found = parse(body(**request_body), SIGNATURES, limits)
    rows = [{"text": text} for text in texts]
    assert found == PredictRequest("serving_default", rows, by_rows)


def test_several_inputs(limits):
    rows = [{"text": "a", "prefix": "", "seed": 3}, {"text": "b", "prefix": "c"}]
    rows[1]["seed"] = -4
    found = parse(body(signature_name="nbest", instances=rows), SIGNATURES, limits)
    columns = {"text": ["a", "b"], "prefix": ["", "c"], "seed": [3, -4]}
    assert found == PredictRequest("nbest", rows, True)
    found = parse(body(signature_name="nbest", inputs=columns), SIGNATURES, limits)
    assert found == PredictRequest("nbest", rows, False)


@pytest.mark.parametrize(
    ("instances", "rows"),
    [
        (["a", "b"], [{"text": "a"}, {"text": "b"}]),
        ([{"text": "a", "seed": 3}], [{"text": "a", "seed": 3}]),
        ([{"prefix": "c", "text": "a"}], [{"text": "a", "prefix": "c"}]),
    ],
)
def test_optional_inputs(instances, rows, limits):
    request = body(signature_name="nbest", instances=instances)
    assert parse(request, SIGNATURES, limits) == PredictRequest("nbest", rows, True)


def test_options(limits):
    given = {"num_beams": 3, "temperature": 0, "stop": ["."], "seed": None}
    found = parse(body(inputs=["a"], options=given), SIGNATURES, limits)
    assert found.options == OptionFields(**given)
    assert found.options.num_beams == 3 and found.options.max_length is None
    assert parse(body(inputs=["a"], options=None), SIGNATURES, limits).options is None
    assert parse(body(inputs=["a"]), SIGNATURES, limits).options is None


def test_an_empty_name_is_the_default_signature(limits):
    for name in ("", "serving_default"):
        found = parse(body(signature_name=name, instances=["a"]), SIGNATURES, limits)
        assert found == PredictRequest("serving_default", [{"text": "a"}], True)


def test_lists_of_numbers(limits):
    rows = [[4, 5], [6, 7]]
    found = parse(body(signature_name="tokens", instances=rows), SIGNATURES, limits)
    assert found.rows == [{"token_ids": row} for row in rows]
    found = parse(body(signature_name="weigh", inputs=[1, 0.5]), SIGNATURES, limits)
    assert found.rows == [{"weights": 1.0}, {"weights": 0.5}]


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (b"\xff", "must be UTF-8"),
        (b"{", "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b'{"instances": [NaN]}', "NaN is not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"{}", "either 'instances'"),
        (body(instances=["a"], inputs=["a"]), "either 'instances'"),
        (body(instances=["a"], extra=1), "no key 'extra'"),
        (body(instances="a"), "'instances' must be a list"),
        (body(inputs="a"), "'text' must be a list"),
        (body(inputs={"words": ["a"]}), r"must have \['text'\]; received \['words'\]"),
        (body(instances=[{"text": "a", "x": 1}]), "must have"),
        (body(instances=[]), "1 to 5 texts; received 0"),
        (body(instances=["a"] * 6), "1 to 5 texts; received 6"),
        (body(instances=["a" * 8]), "at most 7 characters; received 8"),
        (body(instances=[1]), "must contain strings; received 1"),
        (body(instances=[None]), "must contain strings; received None"),
        (body(instances=[["a"]]), "must contain strings"),
        (body(instances=["\ud800"]), "must be Unicode"),
        (body(instances=[{"b64": "?"}]), "the base64 of UTF-8"),
        (body(instances=[{"b64": 3}]), "the base64 of UTF-8"),
        (
            body(instances=[{"b64": base64.b64encode(b"\xff").decode()}]),
            "the base64 of UTF-8",
        ),
        (body(signature_name="x", instances=["a"]), "must be one of"),
        (body(signature_name=["x"], instances=["a"]), "must be one of"),
        (body(signature_name="pair", instances=["a"]), "must be an object with"),
        (body(signature_name="pair", inputs=["a"]), "must be an object with"),
        (
            body(signature_name="nbest", instances=[{"text": "a", "seed": 1}, "b"]),
            "the same inputs",
        ),
        (body(signature_name="nbest", instances=[{"seed": 1}]), "must have"),
        (body(signature_name="nbest", instances=[]), "1 to 5 texts; received 0"),
        (body(instances=["a"], options=[]), "^input should be a valid dictionary"),
        (body(instances=["a"], options={"beams": 3}), "there is no key 'beams'"),
        (body(instances=["a"], options={"num_beams": 0}), "'num_beams': .*or equal"),
        (body(instances=["a"], options={"num_beams": "3"}), "'num_beams': .*integer"),
        (body(instances=["a"], options={"num_beams": 2**31}), "'num_beams': .*less"),
        (body(instances=["a"], options={"top_p": 1.5}), "'top_p': .*less"),
        (body(instances=["a"], options={"stop": "."}), "'stop': .*list"),
        (body(instances=["a"], options={"stop": ["."] * 17}), "'stop': .*at most 16"),
        (body(instances=["a"], options={"seed": "\ud800"}), "'seed': "),
        (body(instances=["a"], options={"\ud800": 1}), "there is no key"),
        (
            body(
                signature_name="nbest",
                inputs={"text": ["a"], "prefix": [], "seed": [1]},
            ),
            "the same length",
        ),
        (body(signature_name="tokens", instances=[[2**31]]), "must fit in 32 bits"),
        (body(signature_name="tokens", instances=[[True]]), "must contain integers"),
        (body(signature_name="tokens", instances=[[1.0]]), "must contain integers"),
        (body(signature_name="tokens", instances=[3]), "must be a list"),
        (body(signature_name="tokens", instances=[[1] * 8]), "at most 7 entries"),
        (body(signature_name="tokens", instances=[[1], [2, 3]]), "same length; pad"),
        (body(signature_name="weigh", instances=["1"]), "must contain numbers"),
        (body(signature_name="weigh", instances=[10**400]), "numbers that fit"),
    ],
)
def test_bad_requests(request_body, message, limits):
    with pytest.raises(RequestError, match=message) as found:
        parse(request_body, SIGNATURES, limits)
    assert found.value.status == 400


def test_any_bytes_are_parsed_or_refused(limits):
    """Valid bodies with random bytes."""
    rng = random.Random(1)
    good = [
        body(instances=["a", "ü", "\U0001f600"]),
        body(signature_name="tokens", inputs={"token_ids": [[1, 2], [3, 4]]}),
        body(signature_name="nbest", instances=[{"text": "", "prefix": "", "seed": 1}]),
    ]
    refused = 0
    for _ in range(1000):
        damaged = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randint(0, 2)] = rng.randbytes(
                rng.randint(0, 2)
            )
        try:
            parse(bytes(damaged), SIGNATURES, limits)
        except RequestError as error:
            refused += error.status == 400 and bool(error.message)
    assert refused > 500


def test_format_response():
    outputs = {"text": ["a", "b"], "score": [-1.0, -2.0]}
    rows = [{"text": "a", "score": -1.0}, {"text": "b", "score": -2.0}]
    assert format_response(rows, by_rows=True) == {"predictions": rows}
    assert format_response(rows, by_rows=False) == {"outputs": outputs}
    rows = [{"text": "a"}, {"text": "b"}]
    assert format_response(rows, by_rows=True) == {"predictions": ["a", "b"]}
    assert format_response(rows, by_rows=False) == {"outputs": ["a", "b"]}
