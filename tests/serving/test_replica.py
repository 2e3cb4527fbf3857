"""The replica, with the SavedModel of the repository."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from keras_transformer_runtime.serving.replica import Replica

from keras_transformer_runtime.serving.rest import Failure, TensorSpec

FOLDER = pathlib.Path(__file__).parents[2] / "saved_models" / "pronounce" / "1"
TOO_LONG = "a" * 70

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture(scope="module")
def replica():
    """A replica with one batch size, so that each function is compiled once."""
    return Replica(FOLDER, batch_sizes=(4,))


def test_a_batch_equals_separate_requests(replica):
    requests = [{"text": ["knight"]}, {"text": ["", "queue"]}]
    together = replica.predict("serving_default", requests)
    texts = ["knight", "", "queue", "a"]
    outputs = replica.functions["serving_default"](text=tf.constant(texts))
    expected = [text.decode() for text in outputs["text"].numpy()]
    assert [found["text"] for found in together] == [expected[:1], expected[1:3]]
    assert together[1]["score"][0] == 0
    for request, found in zip(requests, together, strict=True):
        (alone,) = replica.predict("serving_default", [request])
        assert alone["text"] == found["text"]
        np.testing.assert_allclose(alone["score"], found["score"], atol=1e-4)


def test_an_invalid_text_fails_only_its_request(replica):
    requests = [{"text": ["knight"]}, {"text": ["a", TOO_LONG]}, {"text": ["queue"]}]
    good, bad, other = replica.predict("serving_default", requests)
    assert good["text"] == ["N AY T"] and len(other["text"]) == 1
    assert bad == "`text` must have at most max_source_length=64 tokens"


def test_nan_fails_only_its_request(replica, monkeypatch):
    def score(text):
        scores = tf.where(text == "broken", float("nan"), [-1.0, -np.inf, -2.0, 0.0])
        return {"score": scores, "text": text}

    monkeypatch.setitem(replica.functions, "serving_default", score)
    requests = [{"text": ["a", "b"]}, {"text": ["broken"]}]
    good, bad = replica.predict("serving_default", requests)
    assert good == {"score": [-1.0, None], "text": ["a", "b"]}
    assert bad == Failure(
        "the model computes NaN for this request; check that its weights are finite"
    )


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 4), (4, 4), (5, 5)])
def test_a_batch_is_padded_to_the_next_size(replica, monkeypatch, rows, padded):
    computed = []

    def upper(text):
        computed.append(text.shape[0])
        return {"text": tf.strings.upper(text)}

    monkeypatch.setattr(replica, "compiled_sizes", (1, 4))
    monkeypatch.setitem(replica.functions, "serving_default", upper)
    texts = [f"a{row}" for row in range(rows)]
    (found,) = replica.predict("serving_default", [{"text": texts}])
    assert found == {"text": [text.upper() for text in texts]}
    assert computed == [padded]


def test_scores_have_no_padding(replica):
    pairs = {"source": ["knight", "a"], "target": ["N AY T", "AH"]}
    (found,) = replica.predict("score", [pairs])
    assert found["tokens"] == [["N", "AY", "T", "</s>"], ["AH", "</s>"]]
    sums = [sum(scores) for scores in found["token_scores"]]
    np.testing.assert_allclose(found["score"], sums, atol=1e-5)
    rows = {name: tf.constant([*texts, *texts]) for name, texts in pairs.items()}
    outputs = replica.functions["score"](**rows)
    np.testing.assert_allclose(found["score"], outputs["score"][:2], atol=1e-4)


def test_attention_has_no_padding(replica):
    (found,) = replica.predict("attention", [{"text": ["knight", "a"]}])
    assert found["source_tokens"] == [[*"knight", "</s>"], ["a", "</s>"]]
    for sources, tokens, rows, positions in zip(
        *(found[k] for k in ("source_tokens", "tokens", "attention", "positions")),
        strict=True,
    ):
        assert len(rows) == len(tokens) == len(positions)
        np.testing.assert_allclose(np.sum(rows, axis=1), 1, atol=1e-5)
        assert {len(row) for row in rows} == {len(sources)}


def test_a_missing_hypothesis_has_no_score(replica):
    """Only the end token fits after this prefix."""
    request = {"text": ["a"], "prefix": [" ".join(["AH"] * 51)], "seed": [0]}
    (found,) = replica.predict("nbest", [request])
    (scores,), (lengths,) = found["score"], found["length"]
    assert len(scores) > 1 and scores[0] < 0
    assert lengths[1:] == [0] * len(lengths[1:])
    assert scores[1:] == [None] * len(lengths[1:])


def test_tokens_have_no_padding(replica):
    (found,) = replica.predict("tokens", [{"token_ids": [[5, 6, 3], [5, 3, 0]]}])
    for hypotheses, lengths in zip(found["token_ids"], found["length"], strict=True):
        assert {len(row) for row in hypotheses} == {max(lengths)}


def test_signatures_and_metadata(replica):
    assert replica.signatures["nbest"].inputs == {
        "text": TensorSpec("string", 1),
        "prefix": TensorSpec("string", 1),
        "seed": TensorSpec("int32", 1),
    }
    found = replica.metadata()["signature_def"]["signature_def"]
    assert sorted(found) == sorted(replica.signatures)
    assert found["tokens"]["inputs"]["token_ids"]["dtype"] == "DT_INT32"
    shape = found["tokens"]["inputs"]["token_ids"]["tensor_shape"]
    assert shape == {"dim": [{"size": "-1"}, {"size": "-1"}]}


@pytest.mark.parametrize(
    ("compiled", "computed"),
    [((4,), [4]), ((1,), [1, 4, 1]), ((2,), [2, 4, 2]), ((1, 4), [4])],
)
def test_a_batch_has_at_most_the_greatest_compiled_size(
    replica, monkeypatch, compiled, computed
):
    """A request with more texts is computed at once."""
    sizes = []

    def upper(text):
        sizes.append(text.shape[0])
        return {"text": tf.strings.upper(text)}

    monkeypatch.setattr(replica, "compiled_sizes", compiled)
    monkeypatch.setitem(replica.functions, "serving_default", upper)
    requests = [{"text": ["a"]}, {"text": ["b", "c", "d"]}, {"text": ["e"]}]
    requests = requests if computed != [4] else requests[:2]
    found = replica.predict("serving_default", requests)
    expected = [["A"], ["B", "C", "D"], ["E"]][: len(requests)]
    assert [result["text"] for result in found] == expected
    assert sizes == computed
