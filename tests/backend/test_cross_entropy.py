import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.backend.cross_entropy import cross_entropy_gradient
from keras_transformer.backend.xla_barriers import under_xla, without_xla

TOKENS, VOCABULARY, SMOOTHING = 5, 11, 0.3


@pytest.mark.parametrize("is_xla", [True, False])
def test_gradient_is_that_of_the_formula(is_xla):
    """`(softmax(logits) - q) * scale` in float64; without XLA in place."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(TOKENS, VOCABULARY)).astype("float32")
    targets = rng.integers(VOCABULARY, size=TOKENS).astype("int32")
    scale = rng.uniform(size=TOKENS).astype("float32")
    tensors = map(ops.convert_to_tensor, (logits, targets, scale))
    kinds = []

    def compute(logits, targets, scale):
        with under_xla() if is_xla else without_xla():
            gradient = cross_entropy_gradient(logits, targets, SMOOTHING, scale)
        kinds.append(getattr(getattr(gradient, "op", None), "type", ""))
        return gradient

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        compute = tf.function(compute, jit_compile=is_xla, autograph=False)
    found = ops.convert_to_numpy(compute(*tensors))

    powers = np.exp(logits.astype("float64"))
    wanted = np.full(logits.shape, SMOOTHING / VOCABULARY)
    wanted[np.arange(TOKENS), targets] += 1 - SMOOTHING
    expected = powers / powers.sum(axis=1, keepdims=True) - wanted
    np.testing.assert_allclose(found, expected * scale[:, None], atol=1e-6)
    if keras.backend.backend() == "tensorflow":
        assert (kinds == ["ScatterNdNonAliasingAdd"]) == (not is_xla)
