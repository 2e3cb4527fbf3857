import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import to_numpy

from keras_transformer import Seq2Seq
from keras_transformer.backend.compiling import compile_function
from keras_transformer.backend.few_rows import are_few, matrix, times_transposed

RNG = np.random.default_rng(83)
EMBEDDINGS = RNG.normal(size=(11, 6)).astype("float32")


@pytest.mark.parametrize("shape", [(1, 1, 6), (2, 1, 6), (1, 2, 6)])
def test_product(shape):
    x = RNG.normal(size=shape).astype("float32")
    product = times_transposed(ops.convert_to_tensor(x), EMBEDDINGS)
    np.testing.assert_allclose(to_numpy(product), x @ EMBEDDINGS.T, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_product_of_rows_that_are_not_known_yet(shape):
    layer = keras.layers.Dense(1)

    def product(x):
        transposed = ops.transpose(ops.convert_to_tensor(EMBEDDINGS))
        return times_transposed(x, ops.convert_to_tensor(EMBEDDINGS), transposed)

    compiled = compile_function(product, layer)
    for sizes in [(2, 3), (3, 2), shape]:
        x = RNG.normal(size=(*sizes, 6)).astype("float32")
        logits = to_numpy(compiled(ops.convert_to_tensor(x)))
        np.testing.assert_allclose(logits, x @ EMBEDDINGS.T, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
@pytest.mark.parametrize("under_xla", [True, False])
def test_xla_keeps_the_kernel_out_of_the_product(under_xla):
    import tensorflow as tf

    kinds = []

    def run(kernel):
        reshaped = matrix(kernel, (6, 8))
        kinds.append(reshaped.op.type)
        return reshaped

    layer = keras.layers.Dense(1)
    compiled = compile_function(run, layer) if under_xla else tf.function(run)
    kernel = RNG.normal(size=(6, 2, 4)).astype("float32")
    np.testing.assert_array_equal(compiled(tf.constant(kernel)), kernel.reshape(6, 8))
    assert (kinds == ["XlaOptimizationBarrier"]) == under_xla


def test_what_is_not_known_is_not_few():
    assert are_few(1, 2) and are_few(2, 1)
    assert not are_few(2, 2) and not are_few(None, 1)


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_logits_of_few_rows_are_those_of_many(beams):
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
    model = Seq2Seq(**sizes, vocabulary_size=11)
    source = ops.convert_to_tensor([[4, 5, 3]], "int32")
    tokens = np.arange(4, 4 + beams)[None].astype("int32")
    state = model.prepare_state(model.start_decoding(source, beams, 2))
    assert ("output_kernel" in state) == (beams > 2)
    logits, _ = model.decode_step(ops.convert_to_tensor(tokens), 0, state)
    for beam in range(beams):
        inputs = {
            "encoder_token_ids": np.repeat(to_numpy(source), 4, axis=0),
            "decoder_token_ids": np.full((4, 1), tokens[0, beam]),
        }
        expected = to_numpy(model(inputs))[0, 0]
        np.testing.assert_allclose(to_numpy(logits)[0, beam], expected, atol=1e-5)
