import sys

import keras
import numpy as np
import pytest

from keras_transformer.backend import xla_barriers
from keras_transformer.backend.compiling import compile_function
from keras_transformer.backend.xla_barriers import fusion_barrier

RNG = np.random.default_rng(89)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
@pytest.mark.parametrize("under_xla", [True, False])
def test_xla_keeps_the_kernel_out_of_the_product(under_xla):
    import tensorflow as tf

    kinds = []

    def run(kernel):
        reshaped = fusion_barrier(tf.reshape(kernel, (6, 8)))
        kinds.append(reshaped.op.type)
        return reshaped

    layer = keras.layers.Dense(1)
    compiled = compile_function(run, layer) if under_xla else tf.function(run)
    kernel = RNG.normal(size=(6, 2, 4)).astype("float32")
    np.testing.assert_array_equal(compiled(tf.constant(kernel)), kernel.reshape(6, 8))
    assert (kinds == ["XlaOptimizationBarrier"]) == under_xla


@pytest.mark.once("torch")
def test_the_barrier_is_the_identity_without_the_private_module(monkeypatch):
    name = "tensorflow.compiler.tf2xla.python.xla"
    monkeypatch.setitem(sys.modules, name, None)
    barrier = xla_barriers._optimization_barrier.__wrapped__()
    monkeypatch.setattr(xla_barriers, "_optimization_barrier", lambda: barrier)
    x = np.ones(3)
    with xla_barriers.under_xla():
        assert fusion_barrier(x) is x
