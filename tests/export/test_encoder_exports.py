"""Exports of `TextClassifier`, `TokenClassifier` and `TextEncoder`."""

import json
import warnings

import keras
import numpy as np
import onnxruntime
import pytest

from keras_transformer import (
    CharacterTokenizer,
    RotaryEmbedding,
    TextClassifier,
    TextEncoder,
    TokenClassifier,
    WordTokenizer,
)
from keras_transformer.export.encoder_checks import Output, check_outputs
from keras_transformer_runtime.engines.saved_model_encoder import SavedModelEncoder

SIZES = {"num_layers": 2, "hidden_dim": 8, "intermediate_dim": 13, "num_heads": 2}
TEXTS = ["a cab", "", "bead\u2003face", "a b c d e f g a b c d e f g", "zz \n z"]
PAIRS = [("a cab", "a bead"), ("", "g"), ("a b c d e f g", "a b c d e f")]
WORDS = WordTokenizer.train(lines=["a cab", "bead face", "b c d e f g"])
NAMES = ["one", "two", "three"]

pytestmark = pytest.mark.filterwarnings(
    r"ignore:\d+ of \d+ (texts|sentences) have more than"
)


def encoder(**options):
    keras.utils.set_random_seed(7)
    tokenizer = CharacterTokenizer.train(lines=["abcdefg "])
    return TextEncoder(
        **SIZES,
        **{"tokenizer": tokenizer, "max_length": 11, "num_segments": 2} | options,
        activation="gelu",  # the exact one
        normalize_embeddings=True,
    )


def with_random_weights(model):
    rng = np.random.default_rng(3)  # so that all numbers differ
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def classifier():
    return with_random_weights(TextClassifier(encoder(), NAMES))


@pytest.fixture(scope="module")
def tagger():
    options = {"positions": RotaryEmbedding(), "num_segments": 0, "max_length": 7}
    model = TokenClassifier(encoder(tokenizer=WORDS, **options), ["O", "B-X", "I-X"])
    return with_random_weights(model)


def values(found):
    return np.array([[*each.probabilities.values()] for each in found])


@pytest.mark.slow
def test_a_saved_model_of_a_classifier(classifier, tmp_path):
    classifier.export(tmp_path / "1", card={"licence": "CC0"})
    loaded = SavedModelEncoder.load(tmp_path / "1")
    for texts in (TEXTS, PAIRS):
        expected, found = classifier.classify(texts), loaded.classify(texts)
        np.testing.assert_allclose(values(found), values(expected), atol=1e-5)
        assert [each.label for each in found] == [each.label for each in expected]
    outputs = loaded.call("serving_default", text=TEXTS)
    assert outputs["truncated"].tolist() == [False, False, False, True, False]
    assert [x.decode() for x in outputs["label"]] == [
        each.label for each in classifier.classify(TEXTS)
    ]
    np.testing.assert_allclose(outputs["score"], outputs["probabilities"].max(1))
    assert outputs["classes"].tolist() == [[b"one", b"two", b"three"]] * len(TEXTS)
    rows = {"token_ids": [[2, 5, 6, 3]], "segment_ids": [[0, 0, 0, 0]]}
    ids = loaded.call("tokens", **{n: np.array(x, "int32") for n, x in rows.items()})
    expected = classifier.classify([[2, 5, 6, 3]])
    np.testing.assert_allclose(ids["probabilities"], values(expected), atol=1e-5)
    card = (tmp_path / "1" / "README.md").read_text()
    assert "one, two, three" in card and "CC0" in card


@pytest.mark.slow
def test_a_saved_model_of_several_labels(tmp_path):
    options = {"num_segments": 0}
    model = TextClassifier(encoder(**options), NAMES, multi_label=True, pooling="max")
    with_random_weights(model).export(tmp_path / "1")
    loaded = SavedModelEncoder.load(tmp_path / "1")
    expected, found = model.classify(TEXTS), loaded.classify(TEXTS, batch_size=2)
    assert [each.label for each in found] == [each.label for each in expected]
    assert any(each.label for each in found) and any(
        len(each.label) < 3 for each in found
    )
    outputs = loaded.call("serving_default", text=TEXTS)
    names = [[x.decode() for x in row if x] for row in outputs["label"]]
    assert names == [each.label for each in expected]


@pytest.mark.slow
def test_a_saved_model_of_a_tagger(tagger, tmp_path):
    tagger.export(tmp_path / "1")
    loaded = SavedModelEncoder.load(tmp_path / "1")
    sentences = [text.split() for text in TEXTS]
    expected, found = tagger.tag(sentences), loaded.tag(sentences, batch_size=3)
    assert [each._replace(scores=0) for each in found] == [
        each._replace(scores=0) for each in expected
    ]
    for row, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(row.scores, own.scores, atol=1e-5)
    assert None in found[3].tags and found[3].tags[0] is not None
    outputs = loaded.call("serving_default", text=TEXTS)
    words = [[x.decode() for x in row if x] for row in outputs["word"]]
    tags = [[x.decode() for x in row if x] for row in outputs["tag"]]
    assert words == [row[: len(own)] for row, own in zip(sentences, tags, strict=True)]
    assert tags == [[tag for tag in each.tags if tag] for each in expected]


@pytest.mark.slow
def test_a_saved_model_of_vectors(tmp_path):
    model = encoder()
    model.export(tmp_path / "1", pooling="cls", normalize=True)
    loaded = SavedModelEncoder.load(tmp_path / "1")
    expected = model.embed(TEXTS, pooling="cls", normalize=True)
    np.testing.assert_allclose(loaded.embed(TEXTS), expected, atol=1e-5)
    assert loaded.embed([]).shape == (0, 8)
    with pytest.raises(ValueError, match="must have the signature 'words'"):
        loaded.tag([["a"]])


@pytest.mark.slow
def test_a_saved_model_without_a_tokenizer_takes_ids(tmp_path):
    model = encoder(tokenizer=None, vocabulary_size=17, num_segments=0)
    model.export(tmp_path / "1")
    loaded = SavedModelEncoder.load(tmp_path / "1")
    rows = np.array([[2, 16, 5, 3], [2, 3, 0, 0]], "int32")
    found = loaded.signatures["serving_default"](token_ids=rows)["vector"]
    expected = model.embed([[2, 16, 5, 3], [2, 3]])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(Exception, match="`token_ids` must be from 0 to 16"):
        loaded.signatures["serving_default"](token_ids=rows + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classifier", "tagger", "encoder"])
def test_onnx(kind, classifier, tagger, tmp_path):
    model = {"classifier": classifier, "tagger": tagger, "encoder": encoder()}[kind]
    model.export(tmp_path / "1", format="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "1" / "model.onnx")
    inputs = {x.name: np.array([[2, 5, 6, 3]], "int32") for x in session.get_inputs()}
    config = json.loads((tmp_path / "1" / "config.json").read_text())
    if kind == "encoder":
        inputs["segment_ids"][:] = 0
        expected = model.embed([[2, 5, 6, 3]])
        assert config["task"] == "embed" and config["class_names"] == []
    elif kind == "classifier":
        inputs["segment_ids"][:] = 0
        expected = values(model.classify([[2, 5, 6, 3]]))
        assert config["task"] == "classify" and config["class_names"] == NAMES
    else:
        inputs["first_pieces"] = np.array([[1, 2]], "int32")
        words = WORDS.get_vocabulary()[5:7]
        [expected] = [each.scores for each in model.tag([words])]
        assert config["task"] == "tag"
    [found] = session.run(None, inputs)
    if kind == "tagger":
        found = found[0].max(-1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    [layer, *_] = (model if kind == "encoder" else model.encoder).encoder.blocks
    assert layer.feed_forward.activation is keras.activations.gelu  # as before
    assert len(list((tmp_path / "1").iterdir())) == 3  # and a tokenizer


@pytest.mark.once
def test_wrong_arguments_and_outputs_are_refused(classifier, tmp_path):
    with pytest.raises(ValueError, match="`pooling` and `normalize` must be given for"):
        classifier.export(tmp_path / "1", pooling="cls")
    with pytest.raises(ValueError, match="'saved_model' or 'onnx' for a TextClassif"):
        classifier.export(tmp_path / "1", format="ctranslate2")
    with pytest.raises(ValueError, match="`num_beams` must not be given for `format"):
        classifier.export(tmp_path / "1", num_beams=2)
    inputs = {
        "token_ids": np.array([[2, 5, 3]], "int32"),
        "segment_ids": np.zeros((1, 3), "int32"),
    }
    right = values(classifier.classify([[2, 5, 3]])).astype("float32")
    output = Output(classifier)
    check_outputs("X", output, inputs, right)
    with pytest.raises(RuntimeError, match="X gives probabilities that differ by"):
        check_outputs("X", output, inputs, right + 0.001)
    with pytest.raises(RuntimeError, match="differ by nan"), warnings.catch_warnings():
        check_outputs("X", output, inputs, right * np.nan)
    assert not list(tmp_path.iterdir())
