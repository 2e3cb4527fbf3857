import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.backend.sentencepiece import keep_model
from keras_transformer.text import SentencePieceTokenizer

pytestmark = pytest.mark.once("torch")
PRIVATE = "tensorflow_text.python.ops.sentencepiece_tokenizer"


@pytest.fixture(scope="module")
def proto():
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    return SentencePieceTokenizer.train(lines=lines, vocabulary_size=30).proto


def test_the_model_outlives_the_kernel_cache(proto):
    tokenizer = tf_text.SentencepieceTokenizer(proto)
    before = tokenizer.tokenize(["the cat"]).numpy()
    keep_model(tokenizer, proto)
    keras.utils.clear_session()
    tf.random.set_seed(3)
    after = tf.function(tokenizer.tokenize)(tf.constant(["the cat"])).numpy()
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("module", [None, types.ModuleType(PRIVATE)])
def test_a_tokenizer_works_without_the_private_names(proto, monkeypatch, module):
    expected = SentencePieceTokenizer(proto).tokenize(["the cat"]).numpy()
    package, _, name = PRIVATE.rpartition(".")
    monkeypatch.setitem(sys.modules, PRIVATE, module)
    monkeypatch.setattr(sys.modules[package], name, module)
    tokenizer = SentencePieceTokenizer(proto)
    graph = tf.function(tokenizer.tokenize)
    for tokenize in (tokenizer.tokenize, graph):
        np.testing.assert_array_equal(tokenize(["the cat"]).numpy(), expected)


def test_a_tokenizer_without_a_resource_is_not_changed(proto):
    tokenizer = types.SimpleNamespace()
    keep_model(tokenizer, proto)
    assert not vars(tokenizer)
