"""Derivatives of the losses other than the gradient by one backward pass."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import LabelSmoothedCrossEntropy
from keras_transformer.training.r_drop import r_drop_loss

TARGETS = np.array([[1, 4, 2]])
RNG = np.random.default_rng(11)
LOGITS, OTHER, TANGENT = RNG.normal(size=(3, 1, 3, 5)).astype("float32")
STEP = 1e-3


def cross_entropy(label_smoothing):
    def values(logits):
        wanted = np.eye(5)[TARGETS] * (1 - label_smoothing) + label_smoothing / 5
        return -np.mean(np.sum(wanted * log_softmax(logits), axis=-1))

    return LabelSmoothedCrossEntropy(label_smoothing), values


def divergence(logits):
    p, q = log_softmax(logits), log_softmax(OTHER)
    return np.mean(np.sum((np.exp(p) - np.exp(q)) * (p - q), axis=-1)) / 2


def log_softmax(logits):
    logits = logits.astype("float64")
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def change(function):
    """The directional derivative, by differences."""
    return lambda x: (
        (function(x + STEP * TANGENT) - function(x - STEP * TANGENT)) / (2 * STEP)
    )


def gradient(function):
    """The gradient, by differences."""
    steps = STEP * np.eye(LOGITS.size).reshape(-1, *LOGITS.shape)
    return lambda x: np.reshape(
        [(function(x + step) - function(x - step)) / (2 * STEP) for step in steps],
        x.shape,
    )


def derivatives(function):
    """Gradient, derivative of the gradient, and forward mode, by the backend."""
    if keras.backend.backend() == "jax":
        import jax

        def along(x):
            return ops.sum(jax.grad(function)(x) * TANGENT)

        forward = jax.jvp(function, (LOGITS,), (TANGENT,))[1]
        return jax.grad(function)(LOGITS), jax.grad(along)(LOGITS), forward
    if keras.backend.backend() == "torch":
        import torch

        x, tangent = torch.tensor(LOGITS, requires_grad=True), torch.tensor(TANGENT)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        (second,) = torch.autograd.grad(torch.sum(first * tangent), x)
        forward = torch.func.jvp(function, (x.detach(),), (tangent,))[1]
        return torch.func.grad(function)(x.detach()), second, forward
    import tensorflow as tf

    x = tf.constant(LOGITS)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = function(x)
        first = inner.gradient(value, x)
        along = tf.reduce_sum(first * TANGENT)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(TANGENT)) as accumulator:
        value = function(x)
    return first, outer.gradient(along, x), accumulator.jvp(value)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pytest.mark.parametrize(
    ("loss", "values"),
    [
        cross_entropy(0.0),
        cross_entropy(0.1),
        (lambda targets, x: r_drop_loss(targets, x, OTHER), divergence),
    ],
    ids=["cross_entropy", "smoothed", "r_drop"],
)
def test_derivatives_equal_differences(loss, values):
    found = derivatives(lambda x: loss(TARGETS, x))
    expected = [
        gradient(values)(LOGITS),
        change(gradient(values))(LOGITS),
        change(values)(LOGITS),
    ]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(ours), theirs, atol=1e-4)


@pytest.mark.once("torch")
def test_gradients_of_examples_by_vmap():
    """Gradients of single examples, as for differential privacy."""
    import torch

    loss = LabelSmoothedCrossEntropy(0.1)
    logits = torch.tensor(np.stack([LOGITS, OTHER]))
    targets = torch.tensor(np.stack([TARGETS, TARGETS[:, ::-1]]))
    gradient_of = torch.func.grad(lambda x, y: loss(y, x))
    found = torch.func.vmap(gradient_of)(logits, targets)
    for ours, x, y in zip(found, logits, targets, strict=True):
        torch.testing.assert_close(ours, gradient_of(x, y))
