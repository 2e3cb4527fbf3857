"""Tests of all layers with sub-layers."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import to_numpy

from keras_transformer.layers import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    MultiHeadAttention,
    Residual,
)

X = np.random.default_rng(61).normal(size=(2, 3, 8)).astype("float32")

MAKERS = {
    FeedForward: functools.partial(FeedForward, 5),
    Residual: functools.partial(Residual),
    MultiHeadAttention: functools.partial(MultiHeadAttention, 2, 4),
    EncoderBlock: functools.partial(EncoderBlock, 5, 2),
    DecoderBlock: functools.partial(DecoderBlock, 5, 2),
    EncoderStack: functools.partial(EncoderStack, 2, 5, 2, normalize_first=True),
    DecoderStack: functools.partial(DecoderStack, 2, 5, 2),
}
each_layer = pytest.mark.parametrize(
    "make", MAKERS.values(), ids=lambda m: m.func.__name__
)
OF_ONE_INPUT = (FeedForward, EncoderBlock, EncoderStack)


def model_of(layer):
    inputs = keras.Input((3, 8))
    others = [] if isinstance(layer, OF_ONE_INPUT) else [inputs]
    return keras.Model(inputs, layer(inputs, *others))


@pytest.mark.once("torch")
@each_layer
def test_a_frozen_layer_is_not_trained(make):
    layer = make(trainable=False)
    model = model_of(layer)
    assert len(model.weights) > 1
    assert model.trainable_weights == layer.trainable_weights == []
    layer.trainable = True
    assert len(model.trainable_weights) == len(model.weights)


@pytest.mark.once("torch")
def test_a_loaded_layer_is_frozen_if_the_saved_one_was(tmp_path):
    model = model_of(MAKERS[EncoderBlock]())
    model.layers[-1].trainable = False
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").trainable_weights == []


class Ramp(keras.Initializer):
    """An initializer that is not registered."""

    def __call__(self, shape, dtype=None):
        values = ops.arange(ops.prod(ops.array(shape)), dtype="float32")
        return ops.cast(ops.reshape(values / 100, shape), dtype)


class Halving(keras.regularizers.Regularizer):
    def __call__(self, x):
        return ops.sum(x) / 2


@pytest.mark.once("torch")
@pytest.mark.parametrize("make", [MAKERS[k] for k in (FeedForward, MultiHeadAttention)])
def test_objects_that_keras_could_not_read_back(make):
    options = {"kernel_initializer": Ramp()}
    if make.func is MultiHeadAttention:
        options["kernel_regularizer"] = Halving()
    layer = make(**options)
    model_of(layer)
    kernels = [to_numpy(w) for w in layer.weights if "kernel" in w.path]
    assert len(kernels) > 1
    for kernel in kernels:
        expected = np.arange(kernel.size).reshape(kernel.shape) / 100
        np.testing.assert_allclose(kernel, expected, rtol=1e-6)
    if make.func is MultiHeadAttention:
        total = sum(kernel.sum() / 2 for kernel in kernels)
        np.testing.assert_allclose(to_numpy(sum(layer.losses)), total, rtol=1e-5)


@pytest.mark.once("torch")
@pytest.mark.parametrize("kind", [EncoderBlock, EncoderStack])
def test_an_activation_that_is_a_function(kind):
    double = MAKERS[kind](activation=lambda x: 2.0 * x)
    plain = MAKERS[kind](activation="linear")
    for layer in (double, plain):
        layer.build(X.shape)
    plain.set_weights(double.get_weights())
    feed_forward = plain if kind is EncoderBlock else plain.blocks[0]
    assert feed_forward.activation is keras.activations.linear
    assert np.abs(to_numpy(double(X)) - to_numpy(plain(X))).max() > 1e-3


@pytest.mark.once("torch")
def test_a_number_of_heads_that_does_not_divide_the_width():
    layer = EncoderBlock(5, 3, attention_options={"key_dim": 2})
    assert tuple(layer(X).shape) == X.shape
    assert tuple(layer.self_attention.query_dense.kernel.shape) == (8, 3, 2)
    layer = EncoderBlock(5, 3, attention_options={"num_heads": 4})
    layer.build(X.shape)
    assert layer.self_attention.key_dim == 2
    with pytest.raises(ValueError, match="`num_heads=3`"):
        EncoderBlock(5, 3).build(X.shape)


@pytest.mark.once("torch")
@each_layer
def test_a_rate_of_dropout(make):
    message = r"`dropout` must be in \[0, 1\); received"
    for rate in (None, "0.1", 1.0, -0.1):
        with pytest.raises(ValueError, match=message):
            make(dropout=rate)
