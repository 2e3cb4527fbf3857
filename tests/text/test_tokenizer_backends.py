"""Tokenizers with every backend of Keras."""

import keras
import pytest
import tensorflow as tf
from training_text import LINES


def test_round_trip(tokenizer):
    token_ids = tokenizer.tokenize(LINES)
    assert token_ids.dtype == tf.int32
    assert token_ids.shape.as_list() == [len(LINES), None]
    texts = tokenizer.detokenize(token_ids).numpy()
    assert [text.decode() for text in texts] == LINES


def test_detokenize_takes_any_array(tokenizer):
    rows = tokenizer.tokenize(LINES[:3], add_end=True)
    dense = rows.to_tensor(0)
    for each in (
        rows,
        dense,
        dense.numpy().astype("int64"),
        keras.ops.convert_to_tensor(dense.numpy()),
    ):
        texts = tokenizer.detokenize(each).numpy()
        assert [text.decode() for text in texts] == LINES[:3]


@pytest.mark.once
def test_tokenizer_after_clear_session(tokenizer):
    """TensorFlow drops its cached kernels and the resources that only they own."""
    expected = tokenizer.tokenize(LINES).to_list()
    compiled = tf.function(tokenizer.tokenize)
    compiled(tf.constant(LINES))
    tf.random.set_seed(3)
    keras.utils.clear_session()
    assert tokenizer.tokenize(LINES).to_list() == expected
    assert compiled(tf.constant(LINES)).to_list() == expected
