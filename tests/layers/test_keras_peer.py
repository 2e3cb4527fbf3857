"""Keras's tests of `MultiHeadAttention`, applied to the class of this library."""

import types
import unittest

import keras
import pytest
from keras.src import layers

from keras_transformer.layers import MultiHeadAttention

with pytest.MonkeyPatch.context() as patch:
    # A mark of Keras's test suite.
    patch.setitem(vars(pytest.mark), "requires_trainable_backend", lambda test: test)
    from keras.src.layers.attention import multi_head_attention_test as keras_tests

pytestmark = pytest.mark.slow

CASES = set(unittest.TestLoader().getTestCaseNames(keras_tests.MultiHeadAttentionTest))

# Cases that fail, each with the reason and the error message.
FAILING = {
    "test_causal_only_skipped_for_subclass": (
        "overrides the private `_compute_attention` with an older signature",
        "unexpected keyword argument 'use_causal_mask'",
    ),
}

# Cases that Keras skips on TensorFlow.
NOT_ON_TENSORFLOW = {
    "test_basics_with_flash_attention",
    "test_flash_attention_with_errors",
}


@pytest.fixture
def run(monkeypatch):
    ours = {**vars(layers), "MultiHeadAttention": MultiHeadAttention}
    monkeypatch.setattr(keras_tests, "layers", types.SimpleNamespace(**ours))
    yield lambda case: keras_tests.MultiHeadAttentionTest(case).debug()
    keras.config.enable_flash_attention()


@pytest.mark.filterwarnings(
    "ignore:When providing `inputs` as a dict:UserWarning",
    "ignore:Skipping variable loading for optimizer:UserWarning",
)
@pytest.mark.parametrize("case", sorted(CASES - {*FAILING} - NOT_ON_TENSORFLOW))
def test_passes(case, run):
    run(case)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Keras skips them")
@pytest.mark.parametrize("case", sorted(NOT_ON_TENSORFLOW))
def test_passes_on_jax_and_pytorch(case, run):
    run(case)


@pytest.mark.parametrize("case", FAILING)
def test_still_fails_for_the_same_reason(case, run):
    _, message = FAILING[case]
    with pytest.raises(TypeError, match=message):
        run(case)
