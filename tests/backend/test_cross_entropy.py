import numpy as np
from keras import ops

from keras_transformer.backend.cross_entropy import cross_entropy_gradient

TOKENS, VOCABULARY, SMOOTHING = 5, 11, 0.3


def test_gradient_is_that_of_the_formula():
    """`(softmax(logits) - q) * scale` in float64."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(TOKENS, VOCABULARY)).astype("float32")
    targets = rng.integers(VOCABULARY, size=TOKENS).astype("int32")
    scale = rng.uniform(size=TOKENS).astype("float32")
    logits_, targets_, scale_ = map(ops.convert_to_tensor, (logits, targets, scale))
    found = cross_entropy_gradient(logits_, targets_, SMOOTHING, scale_)

    powers = np.exp(logits.astype("float64"))
    wanted = np.full(logits.shape, SMOOTHING / VOCABULARY)
    wanted[np.arange(TOKENS), targets] += 1 - SMOOTHING
    expected = powers / powers.sum(axis=1, keepdims=True) - wanted
    expected *= scale[:, None]
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, atol=1e-6)
