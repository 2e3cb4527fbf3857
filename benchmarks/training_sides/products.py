"""The matrix products of the model: how much work they are, and how fast it can be."""

from collections.abc import Callable
from typing import Any

import numpy as np

from training_sides.batches import VOCABULARY_SIZE, Batch
from training_sides.clocks import seconds
from training_sides.setting import Setting


def weight_products(size: dict[str, int]) -> list[tuple[str, int, int, int]]:
    """The products with weights: which tokens, how many of them, rows, columns."""
    layers, width = size["num_layers"], size["hidden_dim"]
    inner = size["intermediate_dim"]
    return [
        ("source", 4 * layers, width, width),  # self-attention
        ("source", 2 * layers, width, width),  # keys and values of cross-attention
        ("source", layers, width, inner),
        ("source", layers, inner, width),
        ("target", 6 * layers, width, width),  # self-attention; queries and output
        ("target", layers, width, inner),
        ("target", layers, inner, width),
        ("target", 1, width, VOCABULARY_SIZE),
    ]


def training_flops(batch: Batch, size: dict[str, int]) -> float:
    """Operations of the matrix products of a step, if only real tokens cost any.

    A product is a multiplication and an addition. Each attention has two (scores,
    weighted sum) of all queries and keys, as if there were no causal mask. The
    backward pass takes twice as many as the forward pass.
    """
    sources, targets = batch.lengths
    tokens = {"source": sources.sum(), "target": targets.sum()}
    products = sum(
        tokens[side] * count * rows * columns
        for side, count, rows, columns in weight_products(size)
    )
    pairs = (sources**2 + targets**2 + targets * sources).sum()
    products += 2 * size["num_layers"] * size["hidden_dim"] * pairs
    return 3 * 2 * float(products)


def multiplications(library: str, setting: Setting) -> float:
    """Most operations a second at the model's products with weights, in a library."""
    total = spent = 0.0
    rows = setting.tokens_per_batch
    for _, count, inner, columns in weight_products(setting.dimensions):
        multiply = MULTIPLY[library](
            *(
                np.random.default_rng(0).normal(size=shape).astype("float32")
                for shape in ((rows, inner), (inner, columns))
            )
        )
        multiply()
        repeats = max(5, int(2e10 / (rows * inner * columns)))
        times = [seconds(multiply) for _ in range(repeats)]
        spent += count * min(times)
        total += count * 2 * rows * inner * columns
    return total / spent


def with_numpy(a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    return lambda: a @ b


def with_torch(a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    import torch

    left, right = torch.from_numpy(a), torch.from_numpy(b)
    return lambda: left @ right


def with_jax(a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    import jax

    left, right = jax.numpy.asarray(a), jax.numpy.asarray(b)
    multiply = jax.jit(jax.numpy.matmul)
    return lambda: multiply(left, right).block_until_ready()


MULTIPLY = {"numpy": with_numpy, "torch": with_torch, "jax": with_jax}
