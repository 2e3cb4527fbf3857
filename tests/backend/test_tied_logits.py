import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import to_numpy

from keras_transformer import Seq2Seq
from keras_transformer.backend.compiling import compile_function
from keras_transformer.backend.tied_logits import has_few_rows, tied_logits

IS_TORCH = keras.backend.backend() == "torch"
RNG = np.random.default_rng(83)
EMBEDDINGS = RNG.normal(size=(11, 6)).astype("float32")


@pytest.mark.parametrize("shape", [(1, 1, 6), (2, 1, 6), (1, 2, 6)])
def test_product(shape):
    x = RNG.normal(size=shape).astype("float32")
    found = tied_logits(ops.convert_to_tensor(x), EMBEDDINGS)
    np.testing.assert_allclose(to_numpy(found), x @ EMBEDDINGS.T, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 6), (1, 0, 6)])
def test_no_rows(shape):
    x = np.zeros(shape, "float32")
    found = tied_logits(ops.convert_to_tensor(x), EMBEDDINGS)
    assert tuple(found.shape) == (*shape[:2], 11)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_product_of_rows_that_are_not_known_yet(shape):
    layer = keras.layers.Dense(1)

    def logits(x):
        transposed = ops.transpose(ops.convert_to_tensor(EMBEDDINGS))
        return tied_logits(x, ops.convert_to_tensor(EMBEDDINGS), transposed)

    compiled = compile_function(logits, layer)
    for sizes in [(2, 3), (3, 2), shape]:
        x = RNG.normal(size=(*sizes, 6)).astype("float32")
        found = to_numpy(compiled(ops.convert_to_tensor(x)))
        np.testing.assert_allclose(found, x @ EMBEDDINGS.T, atol=1e-5)


def test_one_or_two_rows_are_few_on_pytorch():
    assert has_few_rows(1, 2) == has_few_rows(2, 1) == IS_TORCH
    assert not has_few_rows(2, 2) and not has_few_rows(None, 1)
    assert not has_few_rows(0, 3)


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_logits_of_few_rows_are_those_of_many(beams):
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
    model = Seq2Seq(**sizes, vocabulary_size=11)
    source = ops.convert_to_tensor([[4, 5, 3]], "int32")
    tokens = np.arange(4, 4 + beams)[None].astype("int32")
    state = model.prepare_state(model.start_decoding(source, beams, 2))
    assert ("output_kernel" in state) == (beams > 2 or not IS_TORCH)
    logits, _ = model.decode_step(ops.convert_to_tensor(tokens), 0, state)
    for beam in range(beams):
        inputs = {
            "encoder_token_ids": np.repeat(to_numpy(source), 4, axis=0),
            "decoder_token_ids": np.full((4, 1), tokens[0, beam]),
        }
        expected = to_numpy(model(inputs))[0, 0]
        np.testing.assert_allclose(to_numpy(logits)[0, beam], expected, atol=1e-5)
