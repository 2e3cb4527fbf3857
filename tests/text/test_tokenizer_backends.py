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


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: rows,
        lambda rows: rows.to_tensor(0),
        lambda rows: rows.to_tensor(0).numpy().astype("int64"),
        lambda rows: keras.ops.convert_to_tensor(rows.to_tensor(0).numpy()),
    ],
    ids=["ragged", "dense", "numpy", "backend"],
)
def test_detokenize_takes_any_array(tokenizer, convert):
    rows = tokenizer.tokenize(LINES[:3], add_end=True)
    texts = tokenizer.detokenize(convert(rows)).numpy()
    assert [text.decode() for text in texts] == LINES[:3]


def test_tokenizer_after_clear_session(tokenizer):
    """TensorFlow drops its cached kernels and the resources that only they own."""
    expected = tokenizer.tokenize(LINES).to_list()
    compiled = tf.function(tokenizer.tokenize)
    compiled(tf.constant(LINES))
    tf.random.set_seed(3)
    keras.utils.clear_session()
    assert tokenizer.tokenize(LINES).to_list() == expected
    assert compiled(tf.constant(LINES)).to_list() == expected
