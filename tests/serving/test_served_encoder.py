"""Classifiers, taggers and encoders in the server, compared with their models."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import keras
import numpy as np
import pytest
from fake_models import client_of, served

from keras_transformer import (
    CharacterTokenizer,
    RotaryEmbedding,
    TextClassifier,
    TextEncoder,
    TokenClassifier,
    WordTokenizer,
)
from keras_transformer_runtime.serving import saved_model_encoder
from keras_transformer_runtime.serving.loaded_model import Progress
from keras_transformer_runtime.serving.requests import RequestError, SignatureCall
from keras_transformer_runtime.serving.rest import TensorSpec
from keras_transformer_runtime.serving.served_model import load_version
from keras_transformer_runtime.serving.server_options import make_server_options
from keras_transformer_runtime.serving.versions import selected_versions

pytestmark = [
    pytest.mark.once("tensorflow"),
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:\d+ of \d+ (texts|sentences) have more than"),
]

SIZES = {"num_layers": 2, "hidden_dim": 8, "intermediate_dim": 13, "num_heads": 2}
TEXTS = ["a cab", "", "bead face", "a b c d e f g a b c d e f g", "zz \n z"]
PAIRS = [("a cab", "a bead"), ("", "g"), ("a b c d e f g", "a b c d e f")]
SENTENCES = ["a cab", "", "bead face b c d e f g", "zz\u2003z", "g"]


def encoder_of(tokenizer, **options):
    keras.utils.set_random_seed(7)
    return TextEncoder(**SIZES, tokenizer=tokenizer, **options)


@pytest.fixture(scope="module")
def models():
    """A classifier, a tagger and an encoder whose weights are random."""
    letters = CharacterTokenizer.train(lines=["abcdefg "])
    words = WordTokenizer.train(lines=["a cab", "bead face", "b c d e f g"])
    classes = encoder_of(letters, max_length=11, num_segments=2)
    tags = encoder_of(words, max_length=7, positions=RotaryEmbedding())
    found = {
        "films": TextClassifier(classes, ["bad", "good", "dull"]),
        "names": TokenClassifier(tags, ["O", "B-X", "I-X"]),
        "vectors": encoder_of(letters, max_length=11),
    }
    rng = np.random.default_rng(3)
    for model in found.values():
        model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return found


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    """Runs without a folder for CTranslate2."""
    folder = tmp_path_factory.mktemp("runs")
    for name, model in models.items():
        model.export(folder / name / "saved_model" / "1")
    return folder


@pytest.fixture(scope="module")
def options(models, folder):
    given = {name: {"folder": folder / name, "batch_sizes": (1, 3)} for name in models}
    return make_server_options(models=given)


@pytest.fixture(scope="module")
def loaded(options):
    """The models of the server, which are those of `load_version`."""

    def load(own):
        [version] = selected_versions(own).values()
        return load_version(version, own, threads=0)

    return {name: load(own) for name, own in options.models.items()}


@pytest.fixture
def outputs(loaded, options):
    """Returns the predictions for rows of a signature."""
    own = options.models
    found = {name: served(name, own[name], model) for name, model in loaded.items()}
    with client_of(found, options) as client:

        def predict(name, rows, signature="serving_default"):
            body = {"signature_name": signature, "instances": rows}
            response = client.post(f"/v1/models/{name}:predict", json=body)
            assert response.status_code == 200, response.json()
            return response.json()["predictions"]

        yield predict


def test_models_are_ready_at_once(loaded):
    for model in loaded.values():
        assert model.progress == Progress() and model.max_texts == 3
    assert loaded["names"].signatures["words"].inputs == {
        "words": TensorSpec("string", 2)
    }
    found = loaded["films"].metadata()["signature_def"]["signature_def"]
    assert sorted(found) == ["pairs", "serving_default", "tokens"]
    assert found["pairs"]["inputs"]["second_text"]["dtype"] == "DT_STRING"


def test_classes(outputs, models):
    rows = [{"text": text, "second_text": second} for text, second in PAIRS]
    for texts, found in (
        (TEXTS, outputs("films", TEXTS)),
        (PAIRS, outputs("films", rows, "pairs")),
    ):
        for row, expected in zip(found, models["films"].classify(texts), strict=True):
            values = [*expected.probabilities.values()]
            np.testing.assert_allclose(row["probabilities"], values, atol=1e-5)
            assert row["label"] == expected.label
            assert row["score"] == pytest.approx(expected.score, abs=1e-5)
            assert row["classes"] == ["bad", "good", "dull"]
    assert [row["truncated"] for row in outputs("films", TEXTS)] == [
        *(False, False, False, True, False)
    ]


def test_tags_have_no_padding(outputs, models):
    found = outputs("names", SENTENCES)
    for row, text, expected in zip(
        found, SENTENCES, models["names"].tag(SENTENCES), strict=True
    ):
        count = sum(tag is not None for tag in expected.tags)
        assert row["word"] == text.split()[:count]
        assert row["tag"] == expected.tags[:count]
        np.testing.assert_allclose(row["score"], expected.scores[:count], atol=1e-5)
        assert np.shape(row["probabilities"])[:1] == (count,)
        assert [row["truncated"]] == [count < len(text.split())]
        [alone] = outputs("names", [text])
        assert {**alone, "score": [], "probabilities": []} == {
            **row,
            **{"score": [], "probabilities": []},
        }
    lists = [["g", "", ""], ["a", "", "zz"], ["", "", ""]]
    first, second, third = outputs("names", lists, "words")
    assert (first["word"], second["word"], third["word"]) == (
        ["g"],
        ["a", "", "zz"],
        [],
    )
    assert len(second["tag"]) == 3 and "" not in second["tag"]
    [row] = outputs("names", [{"token_ids": [2, 4, 3], "first_pieces": [1]}], "tokens")
    assert np.shape(row) == (1, 3)


def test_vectors(outputs, models):
    found = outputs("vectors", TEXTS)
    expected = models["vectors"].embed(TEXTS)
    np.testing.assert_allclose([x["vector"] for x in found], expected, atol=1e-4)
    ids = outputs("vectors", [[2, 5, 6, 3], [2, 6, 3, 0]], "tokens")
    assert np.shape(ids) == (2, 8)


def test_an_invalid_row_fails_only_its_request(loaded):
    rows = [{"token_ids": [2, 3]}, {"token_ids": [2, 99]}]
    first, error = loaded["vectors"].compute(SignatureCall("tokens", (2,)), rows)
    assert len(first["vector"]) == 8
    assert isinstance(error, RequestError) and error.status == 400
    assert re.fullmatch(
        r"`token_ids` must be from 0 to \d+; received \[2 99\]\.", error.message
    )


def test_sizes_of_rows_limit_a_batch(loaded):
    films, names = loaded["films"], loaded["names"]
    assert films.sizes([{"text": "abc"}, {"text": "a" * 99}]) == [7, 11]
    assert names.sizes([{"words": ["a", ""]}, {"words": ["a"] * 9}]) == [5, 7]


def test_nan_fails_only_its_request(loaded, monkeypatch):
    model = loaded["films"]
    call = saved_model_encoder.call_signature

    def with_nan(function, inputs):
        found = call(function, inputs)
        is_broken = np.array([text == "broken" for text in inputs["text"]])
        found["score"] = np.where(is_broken, np.nan, found["score"])
        return found

    monkeypatch.setattr(saved_model_encoder, "call_signature", with_nan)
    rows = [{"text": "a"}, {"text": "broken"}]
    first, error = model.compute(SignatureCall("serving_default"), rows)
    assert first["label"] in ("bad", "good", "dull")
    assert error.status == 500 and "the model computes NaN" in error.message


def test_the_command_serves_runs(folder, models, tmp_path):
    """A new version replaces the old one, and SIGTERM ends the server."""
    run = tmp_path / "films"
    shutil.copytree(folder / "films", run)
    folders = [str(run), str(folder / "names"), str(folder / "vectors")]
    command = [sys.executable, "-m", "keras_transformer_runtime", "serve", *folders]
    with subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:

        def log_until(pattern):
            return next(filter(None, (re.search(pattern, x) for x in server.stderr)))

        try:
            address = log_until(r"http://\S+")[0]
            for _ in folders:
                log_until(r"version 1: ready in [\d.]+ s$")

            def label():
                body = json.dumps({"inputs": ["a cab"]}).encode()
                path = address + "/v1/models/films:predict"
                with urllib.request.urlopen(path, body, timeout=60) as response:
                    return json.load(response)["outputs"]["label"]

            [expected] = models["films"].classify(["a cab"])
            assert label() == [expected.label]
            shutil.copytree(folder / "films" / "saved_model" / "1", tmp_path / "2")
            (tmp_path / "2").rename(run / "saved_model" / "2")
            log_until("films, version 2: ready")
            log_until("films, version 1: unloaded")
            assert label() == [expected.label]
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
