"""Matrix multiplications of the model: number of operations and peak speed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from training_sides.batches import VOCABULARY_SIZE, Batch
from training_sides.clocks import seconds
from training_sides.devices import synchronize, torch_device
from training_sides.setting import Setting


def weight_products(size: dict[str, int]) -> list[tuple[str, int, int, int]]:
    """Returns side, number, rows and columns of all multiplications by weights."""
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
    """Returns the operations of the matrix multiplications of a step without padding.

    Multiplications and additions count separately. Each attention layer has two matrix
    multiplications (scores, weighted sum) for all pairs of queries and keys, without
    regard to the causal mask. The backward pass has twice as many operations as the
    forward pass.
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
    """Returns the peak operations per second of the multiplications in a library."""
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


def gpu_multiplications(backend: str, dtype: str, size: int = 8192) -> float:
    """Returns the peak operations per second of large products on the GPU.

    The products of float32 matrices use TF32. They run in the library of a side.
    """
    dtype = dtype.removeprefix("mixed_")
    if backend == "jax":
        import jax

        key = jax.random.key(0)
        a, b = (
            jax.random.normal(k, (size, size), dtype) for k in jax.random.split(key)
        )
        multiply: Callable[..., Any] = jax.jit(jax.numpy.matmul)
    else:
        import torch

        options: Any = {"device": torch_device(), "dtype": getattr(torch, dtype)}
        a, b = (torch.randn(size, size, **options) for _ in range(2))
        multiply = torch.matmul
    count, rates = 20, []
    for _ in range(5):

        def several() -> None:
            for _ in range(count):
                multiply(a, b)
            synchronize()

        rates.append(count * 2 * size**3 / seconds(several))
    return max(rates)


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
