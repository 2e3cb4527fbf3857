"""R-Drop against the KL divergence of PyTorch in float64."""

import numpy as np
import pytest
import torch
from layer_contract import gradients, to_numpy

from keras_transformer.training import r_drop_loss

BATCH, LENGTH, VOCABULARY = 3, 5, 7
TARGETS = np.array([[4, 6, 2, 0, 0], [5, 1, 3, 6, 2], [6, 2, 0, 0, 0]], dtype="int32")
WEIGHTS = np.array(
    [[1, 0.5, 2, 3, 1], [0, 1, 0.25, 1, 1], [1, 2, 3, 4, 5]], dtype="float32"
)


def logits(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=2, size=(BATCH, LENGTH, VOCABULARY)).astype(dtype)


def reference(first, second, weights):
    """Returns the loss and its gradients with respect to the two logits."""
    first, second = (
        torch.tensor(x, dtype=torch.float64, device="cpu", requires_grad=True)
        for x in (first, second)
    )
    p, q = torch.log_softmax(first, -1), torch.log_softmax(second, -1)
    options = {"reduction": "none", "log_target": True}
    divergence = torch.nn.functional.kl_div(p, q, **options)
    divergence = divergence + torch.nn.functional.kl_div(q, p, **options)
    weights = torch.tensor(weights * (TARGETS != 0), dtype=torch.float64, device="cpu")
    loss = (weights * divergence.sum(-1)).sum() / 2 / weights.sum()
    loss.backward()
    return loss.item(), [x.grad.numpy() for x in (first, second)]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_value_and_gradients_equal_torch(weights):
    inputs = logits(1), logits(2)
    expected, expected_gradients = reference(
        *inputs, np.ones_like(WEIGHTS) if weights is None else weights
    )
    loss = r_drop_loss(TARGETS, *inputs, weights)
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-5)
    found = gradients(lambda a, b: r_drop_loss(TARGETS, a, b, weights), *inputs)
    for ours, theirs in zip(found, expected_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_equal_predictions_have_no_divergence():
    loss = r_drop_loss(TARGETS, logits(1), logits(1) + 3)
    assert abs(to_numpy(loss)) < 1e-6


def test_large_logits_stay_finite():
    first, second = logits(1) * 1e3, logits(2) * 1e3
    assert np.isfinite(to_numpy(r_drop_loss(TARGETS, first, second)))


def test_padding_alone_is_zero():
    targets = np.zeros_like(TARGETS)
    assert to_numpy(r_drop_loss(targets, logits(1), logits(2))) == 0


def test_another_padding_id():
    moved = np.where(TARGETS == 0, 9, TARGETS)
    first = to_numpy(r_drop_loss(TARGETS, logits(1), logits(2)))
    second = r_drop_loss(moved, logits(1), logits(2), pad_token_id=9)
    assert to_numpy(second) == first


@pytest.mark.once("torch")
def test_invalid_shapes():
    with pytest.raises(ValueError, match=r"`y_true.shape=\(3, 5\)`"):
        r_drop_loss(TARGETS, logits(1), logits(2)[:, 1:])
