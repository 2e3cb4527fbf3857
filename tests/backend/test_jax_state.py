"""A model keeps its weights if the data of `fit` raise an error."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import CausalLM

pytestmark = pytest.mark.once("jax")
ROWS = np.full((2, 5), 4, "int32")


def data(good_batches):
    """Raises an error after a number of batches."""

    def generate():
        for _ in range(good_batches):
            yield ROWS, ROWS
        raise RuntimeError("a broken disk")

    specs = (tf.TensorSpec(ROWS.shape, tf.int32),) * 2
    return tf.data.Dataset.from_generator(generate, output_signature=specs)


@pytest.mark.parametrize("good_batches", [0, 2])
def test_the_weights_after_an_error(good_batches):
    model = CausalLM(
        num_layers=1,
        hidden_dim=4,
        intermediate_dim=4,
        num_heads=1,
        vocabulary_size=11,
        dropout=0.0,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(ROWS, ROWS, verbose=0)
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    other.compile(keras.optimizers.SGD(0.1), loss)
    for _ in range(good_batches):
        other.train_on_batch(ROWS, ROWS)
    with pytest.raises(Exception, match="a broken disk"):
        model.fit(data(good_batches), shuffle=False, verbose=0)
    for found, expected in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-6)
    model.fit(ROWS, ROWS, verbose=0)
