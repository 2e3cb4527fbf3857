"""A SavedModel in the server, compared with the SavedModel called alone."""

import ctypes
import json
import logging
import pathlib
import resource
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from fake_models import client_of, served

from keras_transformer import BeamSearch, Sampling
from keras_transformer_runtime.engines.model_description import ModelDescription
from keras_transformer_runtime.serving.loaded_model import Progress
from keras_transformer_runtime.serving.requests import (
    Generation,
    RequestError,
    SignatureCall,
    Text,
)
from keras_transformer_runtime.serving.rest import TensorSpec
from keras_transformer_runtime.serving.saved_model import (
    PaddedSavedModel,
    ServedSavedModel,
    Shape,
    return_freed_memory,
)
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = [pytest.mark.once("tensorflow"), pytest.mark.slow]

SEARCH = BeamSearch(3, 0.7, num_hypotheses=2)
SHORT = ["abc", "", "f", " \t"]
LONG = ["deadbeef" * 4, "abcdef", "cafe" * 8, "a"]
SHAPES = [
    *(Shape("search", 4, 48), Shape("constrained", 4, 48)),
    *(Shape("search", 1, 16), Shape("search", 1, 48)),
    *(Shape("attention_scores", 2, 48), Shape("attention", 2, 48)),
    *(Shape("score", 3, 48), Shape("search", 4, 16)),
]


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters") / "1"
    options = {"constraints": True, "warmup": [(1, 16)], "check_texts": SHORT}
    translator.export(folder, SEARCH, **options)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """The signatures of the SavedModel, each of which takes a batch as it is."""
    signatures = tf.saved_model.load(str(folder)).signatures

    def call(name, **inputs):
        dtypes = {"seed": tf.int32, "token_ids": tf.int32}
        tensors = {
            key: tf.constant(column, dtypes.get(key, tf.string))
            for key, column in inputs.items()
        }
        outputs = signatures[name](**tensors)
        return {key: output.numpy() for key, output in outputs.items()}

    return call


@pytest.fixture(scope="module")
def model(folder):
    """The model with all shapes compiled."""
    model = ServedSavedModel(folder, (1, 4), threads=0)
    deadline = time.monotonic() + 500
    while model.progress.remaining and time.monotonic() < deadline:
        time.sleep(0.1)
    assert model.progress == Progress()
    return model


@pytest.fixture
def calls(monkeypatch):
    """Records the signatures that are called and the numbers of their rows."""
    found = []
    call = PaddedSavedModel.__base__.call

    def record(self, signature, **inputs):
        if signature != "lengths":
            rows = len(next(iter(inputs.values())))
            texts = inputs.get("text", inputs.get("source"))
            found.append((signature, rows, texts))
        return call(self, signature, **inputs)

    monkeypatch.setattr(PaddedSavedModel.__base__, "call", record)
    return found


def nbest(texts):
    return {"text": texts, "prefix": [""] * len(texts), "seed": [0] * len(texts)}


def same(found, expected):
    assert found["text"].tolist() == expected["text"].tolist()
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-4)
    assert found["truncated"].tolist() == expected["truncated"].tolist()


def test_batches_are_padded_to_the_shapes_that_are_compiled(folder, alone, calls):
    padded = PaddedSavedModel(folder, ModelDescription.read(folder), (1, 4))
    expected = {text: alone("nbest", **nbest([text])) for text in [*SHORT, *LONG]}
    pairs = {"source": ["abc"], "target": ["UVW"]}
    score = alone("score", **pairs)
    attention = alone("attention", text=["abc"])
    batches = [(texts[:n], n) for texts in (SHORT, LONG) for n in (1, 2, 3)]
    sizes = {("search", 16): [], ("search", 48): []}
    assert padded.remaining == SHAPES
    for done, shape in enumerate(SHAPES, start=1):
        padded.compile_next()
        assert padded.compiled == {*SHAPES[:done]}
        assert padded.remaining == SHAPES[done:]
        for texts, count in batches:
            calls.clear()
            found = padded.call("nbest", **nbest(texts))
            assert found["text"].shape == (count, 2)
            for row, text in enumerate(texts):
                own = {name: array[row : row + 1] for name, array in found.items()}
                same(own, expected[text])
            [(_, rows, given)] = calls
            length = max(padded.measure(given, "source"))
            used = Shape("search", rows, 16 if length <= 16 else 48)
            assert used in padded.compiled and given[:count] == texts
            sizes[used[0], 16 if texts[0] == "abc" else 48].append(rows)
        if shape == SHAPES[0]:
            message = "the function score is still being compiled; try again later"
            with pytest.raises(RequestError, match=message) as error:
                padded.call("score", **pairs)
            assert error.value.status == 503
        if Shape("score", 3, 48) in padded.compiled:
            found = padded.call("score", **pairs)
            np.testing.assert_allclose(found["score"], score["score"], atol=1e-4)
        if Shape("attention", 2, 48) in padded.compiled:
            found = padded.call("attention", text=["abc"])
            np.testing.assert_allclose(
                found["attention"][0, :4, :4],
                attention["attention"][0, :4, :4],
                atol=1e-4,
            )
    # One text has its own shape once that is compiled, and several of them as well.
    one, two, three = sizes["search", 16][-3:]
    assert (one, two, three) == (1, 4, 4)
    assert sizes["search", 16][:3] == [4, 4, 4]


def rows_of(name, columns, model):
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    width = len(next(iter(rows[0].values()))) if name == "tokens" else None
    call = SignatureCall(name, () if width is None else (width,))
    return model.compute(call, rows)


def test_generated_texts(model, alone):
    generation = Generation(model.engine.options)
    texts = [*SHORT, *LONG[:2]]
    found = model.compute(generation, [*map(Text, texts)])
    expected = alone("nbest", **nbest(texts))
    decoded = [[each.decode() for each in row] for row in expected["text"].tolist()]
    assert [[each.text for each in row] for row in found] == decoded
    assert len({best for best, _ in decoded}) > 3
    assert [[each.length for each in row] for row in found] == (
        expected["length"].tolist()
    )


def test_an_invalid_row_fails_only_its_request(model, alone):
    columns = {
        "text": ["a", "f", "abc"],
        "prefix": ["", "U" * 20, "U"],
        "seed": [0] * 3,
    }
    first, error, third = rows_of("nbest", columns, model)
    assert isinstance(error, RequestError) and error.status == 400
    assert error.message.startswith("`prefix` must be shorter than the maximum output")
    expected = alone("nbest", text=["a", "abc"], prefix=["", "U"], seed=[0, 0])
    assert [first["text"], third["text"]] == [
        [text.decode() for text in row] for row in expected["text"]
    ]


def test_nan_fails_only_its_request(model, monkeypatch):
    def score(source, target):
        scores = tf.where(source == "broken", float("nan"), -1.0)
        return {"score": tf.where(source == "none", -np.inf, scores)}

    functions = {**model.engine.signatures}
    specs = functions["score"].structured_input_signature
    monkeypatch.setattr(model.engine, "signatures", functions)
    functions["score"] = score
    score.structured_input_signature = specs
    monkeypatch.setattr(model.engine, "_takes_texts", lambda signature: False)
    columns = {"source": ["a", "broken", "none"], "target": [""] * 3}
    first, error, last = rows_of("score", columns, model)
    assert (first, last) == ({"score": -1.0}, {"score": None})
    assert error.status == 500
    assert "the model computes NaN for this request" in error.message


def test_scores_have_no_padding(model, alone):
    pairs = {"source": ["abc", "f"], "target": ["UVW", "ZÄ"]}
    first, second = rows_of("score", pairs, model)
    assert first["tokens"] == ["U", "V", "W", "</s>"]
    assert second["tokens"] == ["Z", "Ä", "</s>"]
    expected = alone("score", **pairs)
    for row, found in enumerate((first, second)):
        np.testing.assert_allclose(found["score"], expected["score"][row], atol=1e-4)
        scores = expected["token_scores"][row, : len(found["tokens"])]
        np.testing.assert_allclose(found["token_scores"], scores, atol=1e-4)


def test_attention_has_no_padding(model):
    for text, found in zip(
        ("abc", "f"), rows_of("attention", {"text": ["abc", "f"]}, model), strict=True
    ):
        assert found["source_tokens"] == [*text, "</s>"]
        assert len(found["attention"]) == len(found["tokens"])
        assert len(found["positions"]) == len(found["tokens"]) > 0
        np.testing.assert_allclose(np.sum(found["attention"], axis=1), 1, atol=1e-5)
        assert {len(row) for row in found["attention"]} == {len(text) + 1}


def test_a_missing_hypothesis_has_no_score(model):
    """Only the end token fits after this prefix."""
    columns = {"text": ["a"], "prefix": ["UVWX" * 4], "seed": [0]}
    [found] = rows_of("nbest", columns, model)
    assert found["score"][0] < 0 and found["score"][1:] == [None]
    assert found["length"] == [17, 0]


def test_arrays_are_padded_to_the_next_size(model, alone, calls):
    token_ids = [[4, 5, 3], [6, 3, 0]]
    found = rows_of("tokens", {"token_ids": token_ids}, model)
    assert [(name, rows) for name, rows, _ in calls] == [("tokens", 4)]
    expected = alone("tokens", token_ids=token_ids)
    for row, own in enumerate(found):
        length = max(own["length"])
        assert own["length"] == expected["length"][row].tolist()
        assert own["token_ids"] == expected["token_ids"][row, :, :length].tolist()


def test_constrained_texts(model, alone, calls):
    columns = {
        "text": ["abc", "", "f"],
        "prefix": ["", "", "U"],
        "constraints": ["VX", "", "W\tZ"],
    }
    found = rows_of("constrained", columns, model)
    assert [(name, rows) for name, rows, _ in calls] == [("constrained", 4)]
    expected = alone("constrained", **columns)
    texts = [[each.decode() for each in row] for row in expected["text"].tolist()]
    assert [row["text"] for row in found] == texts
    assert "VX" in texts[0][0] and {*"UWZ"} <= {*texts[2][0]}


def test_signatures_and_metadata(model):
    assert model.signatures["nbest"].inputs == {
        "text": TensorSpec("string", 1),
        "prefix": TensorSpec("string", 1),
        "seed": TensorSpec("int32", 1),
    }
    found = model.metadata()["signature_def"]["signature_def"]
    assert sorted(found) == sorted(model.signatures)
    assert "lengths" not in found
    assert found["tokens"]["inputs"]["token_ids"]["dtype"] == "DT_INT32"
    shape = found["tokens"]["inputs"]["token_ids"]["tensor_shape"]
    assert shape == {"dim": [{"size": "-1"}, {"size": "-1"}]}


def test_a_dictionary(model, folder, tmp_path, alone):
    (tmp_path / "terms.tsv").write_text("cafe\tVX\nbad\tW\n")
    given = {"folder": folder, "dictionary": tmp_path / "terms.tsv"}
    given["languages"] = ["en", "de"]
    options = make_server_options(models={"m": given})
    found = served("m", options.models["m"], model)
    expected = alone("constrained", text=["cafe"], prefix=[""], constraints=["VX"])
    plain = alone("nbest", **nbest(["abc"]))
    with client_of({"m": found}, options) as client:
        body = {"q": ["cafe", "abc"], "source": "en", "target": "de"}
        response = client.post("/translate", json=body)
        assert response.json()["translatedText"] == [
            expected["text"][0, 0].decode(),
            plain["text"][0, 0].decode(),
        ]


def test_a_shape_that_cannot_be_compiled(folder, alone, monkeypatch, caplog):
    """Requests of the other shapes are computed nevertheless."""
    compile_next, compiled = PaddedSavedModel.compile_next, []

    def fail(self):
        if compiled:
            raise MemoryError("out of memory")
        compiled.append(self.remaining[0])
        compile_next(self)

    monkeypatch.setattr(PaddedSavedModel, "compile_next", fail)
    with caplog.at_level(logging.INFO):
        model = ServedSavedModel(folder, (1, 4), threads=0)
        while model.progress.remaining:
            time.sleep(0.01)
    assert model.progress.error == (
        "a shape cannot be compiled; see the log of the server"
    )
    assert "out of memory" in caplog.text
    [[best, _]] = model.compute(Generation(model.engine.options), [Text("abc")])
    [expected, _] = alone("nbest", **nbest(["abc"]))["text"][0]
    assert best.text == expected.decode()


def test_a_search_without_options_in_the_commands(translator, tmp_path):
    """It has no description, and computes nevertheless."""
    search = BeamSearch(2, 0.7, patience=2.0)
    translator.export(tmp_path / "1", search, warmup=(), check_texts=SHORT)
    loaded = ServedSavedModel(tmp_path / "1", (1, 4), threads=0)
    assert loaded.progress == Progress()
    texts = [Text(text) for text in SHORT]
    found = loaded.compute(Generation(loaded.engine.options), texts)
    expected = translator.generate(SHORT, search)
    assert [row[0].text for row in found] == expected and expected[0]


def test_completions_of_a_language_model(language_model, tmp_path):
    """Streams are computed a few tokens at a time, in batches."""
    given = {"check_texts": ["abc", ""], "warmup": (), "max_length": 9}
    language_model.export(tmp_path / "1", Sampling(top_k=1), **given)
    model = ServedSavedModel(tmp_path / "1", (1, 4), threads=0)
    while model.progress.remaining:
        time.sleep(0.1)
    assert model.progress.error == ""
    options = make_server_options(models={"m": {"folder": tmp_path}})
    prompts = ["abc", "f", "deadbee"]
    texts = language_model.generate(prompts, Sampling(top_k=1), max_length=9, seed=3)
    body = {"model": "m", "prompt": prompts, "logprobs": 1}
    found = served("m", options.models["m"], model)
    with client_of({"m": found}, options) as client:
        response = client.post("/v1/completions", json=body)
        choices = response.json()["choices"]
        assert [choice["text"] for choice in choices] == texts
        expected = language_model.score(prompts, texts)
        for choice, scores in zip(choices, expected.token_scores, strict=True):
            logprobs = choice["logprobs"]["token_logprobs"]
            assert len(logprobs) in (len(scores), len(scores) - 1)
            np.testing.assert_allclose(logprobs, scores[: len(logprobs)], atol=1e-4)
        # The end token does not fit into the context.
        full = client.post("/v1/completions", json={**body, "prompt": "abcdef" * 3})
        message = "`source` and `target` must be shorter together."
        assert full.status_code == 400
        assert full.json()["error"]["message"] == message
        del body["logprobs"]
        streamed = client.post("/v1/completions", json={**body, "stream": True})
        pieces = [""] * 3
        for event in streamed.text.split("\n\n")[:-2]:
            [choice] = json.loads(event.removeprefix("data: "))["choices"]
            pieces[choice["index"]] += choice["text"]
        assert pieces == texts
        echoed = client.post("/v1/completions", json={**body, "echo": True}).json()
        assert [choice["text"] for choice in echoed["choices"]] == [
            prompt + text for prompt, text in zip(prompts, texts, strict=True)
        ]


def resident_mb():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_returns_to_the_system(monkeypatch):
    blocks = [np.ones(100_000, np.uint8) for _ in range(4000)]
    last = blocks[-1]  # keeps glibc from returning what is below it
    full = resident_mb()
    blocks.clear()
    return_freed_memory()
    assert resident_mb() < full - 300 and last[0] == 1
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # without glibc
    return_freed_memory()
