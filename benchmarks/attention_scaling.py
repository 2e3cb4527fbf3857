"""Measures time and memory of attention patterns by sequence length.

Each model has a single attention layer. With a width of 64 and 8 heads of 64, the
projections take a small part of the time. The benchmark compares dense attention, which
returns its scores; fused attention (`keras.layers.MultiHeadAttention`, which calls
`keras.ops.dot_product_attention`); and the patterns, which are computed in blocks. With
a pattern, a position attends to 128 others (64 with a causal mask) and to the global
positions. A step is `train_on_batch`: forward
pass, backward pass and an SGD update, compiled as in `fit` (with XLA on JAX and
TensorFlow, eager on PyTorch).

Attention variants and lengths alternate. Each measurement runs in a new process and
excludes the first step, which compiles. Additional memory is the peak of all steps
without the resident memory after a step on a short sequence. The benchmark requires
Linux, and sets malloc to use huge pages: malloc maps buffers of more than 32 MB anew at
every step, which takes as long as the attention with small pages.

    KERAS_BACKEND=jax python benchmarks/attention_scaling.py
"""

import argparse
import ctypes
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_transformer import GlobalLocal, LocalWindow, MultiHeadAttention, Strided

NUM_HEADS, KEY_DIM, HIDDEN_DIM, RADIUS = 8, 64, 64, 64
WARM_UP_LENGTH = 512
PATTERNS = {
    "LocalWindow": LocalWindow(RADIUS),
    "LocalWindow causal": LocalWindow(RADIUS),
    "Strided": Strided(stride=4, radius=4 * RADIUS),
    "GlobalLocal": GlobalLocal(RADIUS, global_tokens=16),
}
QUADRATIC = ("dense", "fused")

Run = tuple[str, int]
Figures = dict[str, float]


def main() -> None:
    """Prints the tables and, with `--json`, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shortest", type=int, default=1024)
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--quadratic-up-to", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3, help="processes per variant")
    parser.add_argument("--steps", type=int, default=3, help="steps per process")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    print(f"backend {keras.backend.backend()}, keras {keras.__version__}")
    measured = measure(runs(options), options.repeats, options.steps)
    costs = {f"{variant}, {n}": figures for (variant, n), figures in measured.items()}
    print_table(costs, "ms", "additional MB")
    ratios = {**growth(measured), **savings(measured, options.quadratic_up_to)}
    print_table(ratios, "time", "memory")
    if options.json:
        figures = {"costs": costs, "ratios": ratios}
        with open(options.json, "w") as file:
            json.dump({"backend": keras.backend.backend(), **figures}, file)


def runs(options: argparse.Namespace) -> list[Run]:
    """Returns all variants at all lengths, which double."""
    lengths = [options.shortest]
    while 2 * lengths[-1] <= options.longest:
        lengths.append(2 * lengths[-1])
    return [
        (variant, n)
        for variant, n in itertools.product((*QUADRATIC, *PATTERNS), lengths)
        if variant in PATTERNS or n <= options.quadratic_up_to
    ]


def measure(runs: list[Run], repeats: int, num_steps: int) -> dict[Run, Figures]:
    """Returns the medians of all steps of each run. The runs alternate."""
    steps: dict[Run, list[Figures]] = {run: [] for run in runs}
    spawn = multiprocessing.get_context("spawn")
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    for _, run in itertools.product(range(repeats), runs):
        with ProcessPoolExecutor(1, spawn) as process:
            steps[run] += process.submit(measured_steps, *run, num_steps).result()
    return {
        run: {
            name: statistics.median(step[name] for step in taken) for name in taken[0]
        }
        for run, taken in steps.items()
    }


def measured_steps(variant: str, length: int, num_steps: int) -> list[Figures]:
    """Returns milliseconds and additional MB of each step."""
    training_step(variant, WARM_UP_LENGTH)()
    step = training_step(variant, length)
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    step()
    times = [milliseconds(step) for _ in range(num_steps)]
    extra_mb = resident("VmHWM") - before
    return [{"ms": ms, "extra_mb": extra_mb} for ms in times]


def training_step(variant: str, length: int) -> Callable[[], Any]:
    """Returns a training step of a model with a single attention layer."""
    inputs = keras.Input((length, HIDDEN_DIM))
    model = keras.Model(inputs, attention(variant, inputs))
    model.compile(optimizer="sgd", loss="mse")
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(1, length, HIDDEN_DIM)).astype("float32")
    return lambda: model.train_on_batch(batch, batch)


def attention(variant: str, inputs: Any) -> Any:
    if variant == "fused":
        return keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)(inputs, inputs)
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, pattern=PATTERNS.get(variant))
    if variant == "dense":
        output, _ = layer(inputs, inputs, return_attention_scores=True)
        return output
    return layer(inputs, inputs, use_causal_mask="causal" in variant)


def milliseconds(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - started)


def resident(field: str) -> float:
    """Returns the resident (`VmRSS`) or peak (`VmHWM`) memory in MB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{field}:\s*(\d+) kB", status)[0]) / 1024


def growth(measured: dict[Run, Figures]) -> dict[str, Figures]:
    """Returns the ratios of the costs when the length doubles."""
    return {
        f"{variant}, {2 * n} / {n}": ratios(
            measured[variant, 2 * n], measured[variant, n]
        )
        for variant, n in measured
        if (variant, 2 * n) in measured
    }


def savings(measured: dict[Run, Figures], length: int) -> dict[str, Figures]:
    """Returns the costs of dense and fused attention relative to the patterns."""
    return {
        f"{quadratic} / {variant}, {length}": ratios(
            measured[quadratic, length], measured[variant, length]
        )
        for quadratic, variant in itertools.product(QUADRATIC, PATTERNS)
        if (quadratic, length) in measured
    }


def ratios(figures: Figures, others: Figures) -> Figures:
    return {name: figures[name] / others[name] for name in figures}


def print_table(rows: dict[str, Figures], time: str, memory: str) -> None:
    print(f"\n{'':36}{time:>14}{memory:>14}")
    for name, figures in rows.items():
        print(f"{name:36}{figures['ms']:14.2f}{figures['extra_mb']:14.2f}")


if __name__ == "__main__":
    main()
