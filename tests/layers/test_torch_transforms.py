"""Layers under `torch.compile`, `torch.func.grad` and `torch.vmap`."""

import numpy as np
import pytest

import keras_transformer as kt

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

BLOCK = {"intermediate_dim": 12, "num_heads": 2}
MODERN = {
    "positions": kt.RotaryEmbedding(),
    "normalize_first": True,
    "activation": "silu",
    "attention_options": {"num_key_value_heads": 1, "pattern": kt.LocalWindow(2)},
    "feed_forward_options": {"gated": True},
    "residual_options": {"normalization": "rms"},
}


def tensors(*shape, count=1):
    import torch

    rng = np.random.default_rng(0)
    return [
        torch.tensor(rng.normal(size=shape).astype("float32")) for _ in range(count)
    ]


# Layers, and the shape and number of their inputs.
LAYERS = {
    "PositionalEncoding": (lambda: kt.PositionalEncoding(9), (2, 5, 8), 1),
    "LearnedPositionalEncoding": (
        lambda: kt.LearnedPositionalEncoding(9),
        (2, 5, 8),
        1,
    ),
    "RotaryEmbedding": (lambda: kt.RotaryEmbedding(), (2, 5, 2, 4), 1),
    "FeedForward": (lambda: kt.FeedForward(12), (2, 5, 8), 1),
    "MultiHeadAttention": (lambda: kt.MultiHeadAttention(2, 4), (2, 5, 8), 2),
    "EncoderBlock": (lambda: kt.EncoderBlock(**BLOCK), (2, 5, 8), 1),
    "EncoderBlock, modern": (lambda: kt.EncoderBlock(**BLOCK, **MODERN), (2, 5, 8), 1),
    "EncoderBlock, relative": (
        lambda: kt.EncoderBlock(positions=kt.RelativePositionBias(4, 9), **BLOCK),
        (2, 5, 8),
        1,
    ),
    "DecoderBlock": (lambda: kt.DecoderBlock(**BLOCK), (2, 5, 8), 2),
    "EncoderStack": (lambda: kt.EncoderStack(num_layers=2, **BLOCK), (2, 5, 8), 1),
    "DecoderStack": (
        lambda: kt.DecoderStack(num_layers=2, positions=kt.AlibiBias(), **BLOCK),
        (2, 5, 8),
        2,
    ),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def made(name):
    make, shape, count = LAYERS[name]
    layer, inputs = make(), tensors(*shape, count=count)
    return layer, inputs, layer(*inputs)


@pytest.mark.parametrize("name", [name for name in LAYERS if "relative" not in name])
def test_one_graph(name):
    import torch

    layer, inputs, expected = made(name)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: layer(*x), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(*inputs), expected, atol=1e-6)


@each_layer
def test_gradients(name):
    import torch

    layer, (x, *others), _ = made(name)

    def loss(x):
        return (layer(x, *others) ** 3).sum()

    found = torch.func.grad(loss)(x)
    x = x.clone().requires_grad_()
    loss(x).backward()
    assert torch.allclose(found, x.grad, atol=1e-4, rtol=1e-5)
    assert x.grad.abs().max() > 0


@each_layer
def test_rows_by_vmap(name):
    import torch

    layer, inputs, expected = made(name)
    found = torch.vmap(lambda *row: layer(*(x[None] for x in row))[0])(*inputs)
    assert torch.allclose(found, expected, atol=1e-6)
