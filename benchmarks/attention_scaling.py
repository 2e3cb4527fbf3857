"""Times attention patterns, and measures their memory, as the sequence grows.

Each route stands alone in a Keras model of width 64, so that the projections are
small beside 8 heads of 64: dense attention (its scores are asked for, and so
built), fused attention (`keras.layers.MultiHeadAttention`, which calls
`keras.ops.dot_product_attention`), and the patterns, computed in blocks: a
position sees 128 others, 64 under the causal mask, and the global ones. A step is
`train_on_batch`: forward, backward and a plain SGD update, compiled as `fit` does
it on the backend (by XLA on JAX and TensorFlow, not at all on torch).

Routes and lengths take turns, each time in a new process, in which the first step
compiles and is not timed. The extra memory is the peak of all steps less what was
resident before them, after a step over a short sequence. Linux reports it, and its
malloc is told to use huge pages: it maps a buffer of more than 32 MB anew at every
step, and page by page that takes as long as the attention.

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
    """Prints the tables and, with --json, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shortest", type=int, default=1024)
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--quadratic-up-to", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each")
    parser.add_argument("--steps", type=int, default=3, help="steps of a process")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    print(f"backend {keras.backend.backend()}, keras {keras.__version__}")
    measured = measure(runs(options), options.repeats, options.steps)
    costs = {f"{route}, {n}": figures for (route, n), figures in measured.items()}
    print_table(costs, "ms", "extra MB")
    ratios = {**growth(measured), **savings(measured, options.quadratic_up_to)}
    print_table(ratios, "time", "memory")
    if options.json:
        figures = {"costs": costs, "ratios": ratios}
        with open(options.json, "w") as file:
            json.dump({"backend": keras.backend.backend(), **figures}, file)


def runs(options: argparse.Namespace) -> list[Run]:
    """The routes at every length, each twice the one before."""
    lengths = [options.shortest]
    while 2 * lengths[-1] <= options.longest:
        lengths.append(2 * lengths[-1])
    return [
        (route, n)
        for route, n in itertools.product((*QUADRATIC, *PATTERNS), lengths)
        if route in PATTERNS or n <= options.quadratic_up_to
    ]


def measure(runs: list[Run], repeats: int, num_steps: int) -> dict[Run, Figures]:
    """Medians of all steps of each run, the runs taken in turns."""
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


def measured_steps(route: str, length: int, num_steps: int) -> list[Figures]:
    """Milliseconds of each step, and MB on top of what a short sequence leaves."""
    training_step(route, WARM_UP_LENGTH)()
    step = training_step(route, length)
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    step()
    times = [milliseconds(step) for _ in range(num_steps)]
    extra_mb = resident("VmHWM") - before
    return [{"ms": ms, "extra_mb": extra_mb} for ms in times]


def training_step(route: str, length: int) -> Callable[[], Any]:
    """One `train_on_batch` of a model with nothing in it but the layer."""
    inputs = keras.Input((length, HIDDEN_DIM))
    model = keras.Model(inputs, attention(route, inputs))
    model.compile(optimizer="sgd", loss="mse")
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(1, length, HIDDEN_DIM)).astype("float32")
    return lambda: model.train_on_batch(batch, batch)


def attention(route: str, inputs: Any) -> Any:
    if route == "fused":
        return keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)(inputs, inputs)
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, pattern=PATTERNS.get(route))
    if route == "dense":
        output, _ = layer(inputs, inputs, return_attention_scores=True)
        return output
    return layer(inputs, inputs, use_causal_mask="causal" in route)


def milliseconds(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - started)


def resident(field: str) -> float:
    """MB in memory now (`VmRSS`), or at most since the peak was reset (`VmHWM`)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{field}:\s*(\d+) kB", status)[0]) / 1024


def growth(measured: dict[Run, Figures]) -> dict[str, Figures]:
    """What a sequence twice as long costs."""
    return {
        f"{route}, {2 * n} / {n}": ratios(measured[route, 2 * n], measured[route, n])
        for route, n in measured
        if (route, 2 * n) in measured
    }


def savings(measured: dict[Run, Figures], length: int) -> dict[str, Figures]:
    """What attention of all to all costs next to the patterns."""
    return {
        f"{quadratic} / {route}, {length}": ratios(
            measured[quadratic, length], measured[route, length]
        )
        for quadratic, route in itertools.product(QUADRATIC, PATTERNS)
        if (quadratic, length) in measured
    }


def ratios(figures: Figures, others: Figures) -> Figures:
    return {name: figures[name] / others[name] for name in figures}


def print_table(rows: dict[str, Figures], time: str, memory: str) -> None:
    print(f"\n{'':36}{time:>10}{memory:>10}")
    for name, figures in rows.items():
        print(f"{name:36}{figures['ms']:10.2f}{figures['extra_mb']:10.2f}")


if __name__ == "__main__":
    main()
