"""SavedModels of models with a `source_embedding`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import BeamSearch
from keras_transformer.export import describe_signatures, warmup_requests
from keras_transformer_runtime.serving.requests import RequestError, SignatureCall
from keras_transformer_runtime.serving.saved_model import ServedSavedModel

pytestmark = [pytest.mark.once, pytest.mark.slow]
SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
FRAMES = np.random.default_rng(3).normal(size=(3, 20, 5)).astype("float32")
SEARCH = BeamSearch(2)
LIMIT = kt.RelativeLength(0.6, 0.0)  # six tokens for the ten positions of 20 frames


def make_model(source_embedding=None, **options):
    layer = source_embedding or keras.Sequential(
        [keras.Input((None, 5)), keras.layers.Conv1D(8, 2, strides=2)]
    )
    return kt.Seq2Seq(source_embedding=layer, **SIZES, **options)


@pytest.fixture(scope="module")
def model():
    tokenizer = kt.CharacterTokenizer.train(lines=["abcdef"])
    return make_model(target_tokenizer=tokenizer)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / "1"
    model.export(path, SEARCH, max_length=LIMIT, warmup=((1, 16), (2, 16)))
    return path


@pytest.fixture(scope="module")
def signatures(folder):
    return tf.saved_model.load(str(folder)).signatures


def test_texts(model, signatures):
    outputs = signatures["serving_default"](source=tf.constant(FRAMES))
    texts, scores = model.generate(FRAMES, SEARCH, max_length=LIMIT, return_scores=True)
    assert [text.decode() for text in outputs["text"].numpy()] == texts
    np.testing.assert_allclose(outputs["score"], scores, atol=1e-4)
    empty = signatures["serving_default"](source=tf.constant(FRAMES[:0]))
    assert empty["text"].shape == (0,)


def test_prefixes_and_tokens(model, signatures):
    seeds = tf.constant([1, 2, 3])
    prefix = ["ab", "", "f"]
    outputs = signatures["nbest"](
        source=tf.constant(FRAMES), prefix=tf.constant(prefix), seed=seeds
    )
    texts = model.generate(FRAMES, SEARCH, max_length=LIMIT, prefix=prefix)
    assert [text.decode() for text in outputs["text"].numpy()[:, 0]] == texts
    with pytest.raises(tf.errors.InvalidArgumentError, match="`prefix` must be short"):
        signatures["nbest"](
            source=tf.constant(FRAMES), prefix=tf.constant(["abcdef"] * 3), seed=seeds
        )
    tokens = signatures["tokens"](source=tf.constant(FRAMES), seed=seeds)
    found = model.target_tokenizer.detokenize(tokens["token_ids"].numpy()[:, 0])
    expected = model.generate(FRAMES, SEARCH, max_length=LIMIT)
    assert [text.decode() for text in found.numpy()] == expected


def test_scores(model, signatures):
    targets = ["ab", "", "fed"]
    outputs = signatures["score"](
        source=tf.constant(FRAMES), target=tf.constant(targets)
    )
    expected = model.score(FRAMES, targets)
    np.testing.assert_allclose(outputs["score"], expected.scores, atol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one entry for each"):
        signatures["score"](source=tf.constant(FRAMES), target=tf.constant(["ab"]))


def test_the_server_takes_arrays_of_several_shapes(model, folder):
    sources = [FRAMES[0], FRAMES[1, :10], FRAMES[2]]
    rows = [{"source": source.tolist()} for source in sources]
    served = ServedSavedModel(folder, (1, 4), threads=0)
    call = SignatureCall("serving_default")
    results = served.compute(call, rows)
    texts, scores = model.generate(
        sources, SEARCH, max_length=LIMIT, return_scores=True
    )
    assert [result["text"] for result in results] == texts
    found = [result["score"] for result in results]
    np.testing.assert_allclose(found, scores, atol=1e-4)
    narrow = [{"source": FRAMES[0, :, :4].tolist()}, rows[0]]
    error, result = served.compute(call, narrow)
    assert isinstance(error, RequestError) and error.status == 400
    expected = "`source` must have the shape (None, None, 5); received (1, 20, 4)."
    assert error.message == expected
    assert result == results[0]


def test_card_and_warmup(folder):
    assert "source float32(·, ·, 5)" in describe_signatures(folder)["serving_default"]
    card = (folder / "README.md").read_text("utf-8")
    assert 'serve(source=tf.zeros((1, 16, 5), "float32"))' in card
    shapes = [request.inputs["source"].shape for request in warmup_requests(folder)]
    assert shapes == [(1, 16, 5), (2, 16, 5)]


def test_a_model_without_tokenizer_and_with_rounded_weights(tmp_path):
    ids = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 8)]
    )
    model = make_model(ids, vocabulary_size=11)
    sources = np.array([[1, 2, 3, 4], [8, 7, 0, 0]])
    options = {"max_length": 5, "warmup": (), "quantization": "float16"}
    with pytest.raises(ValueError, match="`check_sources` must be given"):
        model.export(tmp_path / "model", SEARCH, **options)
    model.export(tmp_path / "model", SEARCH, **options, check_sources=sources)
    signatures = describe_signatures(tmp_path / "model")
    assert signatures.keys() == {"serving_default", "tokens"}
    assert signatures["serving_default"].startswith("source int32(·, 4) → length")


def test_an_input_of_unknown_shape(tmp_path):
    model = make_model(keras.layers.Dense(8), vocabulary_size=11)
    with pytest.raises(ValueError, match="input of known shape and dtype for"):
        model.export(tmp_path / "model", SEARCH)
