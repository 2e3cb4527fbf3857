"""Measurement of a side."""

import contextlib
import importlib
import itertools
import os
import warnings
from typing import Any

import numpy as np

from training_sides.batches import Batch, first_of_each_shape, read_batches
from training_sides.clocks import Clocks, on_one_core, peak_mb, reset_peak, seconds
from training_sides.products import training_flops
from training_sides.setting import Setting, Train

QUIET = 0.1  # maximum load of other processes in a measured step

Figures = dict[str, float]


def measure(
    module: str,
    options: dict[str, Any],
    setting: Setting,
    path: str,
    passes: int,
) -> Figures:
    """Builds and trains a side and returns its figures."""
    side = importlib.import_module(f"training_sides.{module}")
    batches = read_batches(path)
    flops = sum(training_flops(batch, setting.dimensions) for batch in batches)
    before = reset_peak()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        train = side.build(setting, **options)
        compiling = first_steps(train, batches)
        taken, by_others = steady_steps(train, batches, passes)
    return {
        "tokens_per_second": sum(batch.tokens for batch in batches) / taken,
        "flops_per_second": flops / taken,
        "compile_seconds": compiling,
        "extra_mb": peak_mb() - before,
        "taken_by_others": by_others,
    }


def measure_parts(setting: Setting, path: str, passes: int) -> Figures:
    """Returns the milliseconds of each part of a step."""
    from training_sides.parts import profile  # Keras, on this process's backend.

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return profile(setting, path, passes)


def first_steps(train: Train, batches: list[Batch]) -> float:
    """Returns the additional seconds of the first step on each shape."""

    def done() -> None:
        """Does nothing."""

    shapes = first_of_each_shape(batches)
    first = seconds(lambda: train(shapes, done))
    return first - seconds(lambda: train(shapes, done))


def steady_steps(
    train: Train, batches: list[Batch], passes: int
) -> tuple[float, float]:
    """Returns the seconds of all batches, and the load of other processes.

    The time of a batch is the median of the `passes` steps with the lowest load. Passes
    are added until the load is low in all of them, up to `3 * passes`. On one core,
    where seconds are processor time, no passes are added.
    """
    steps: list[list[tuple[float, float]]] = [[] for _ in batches]
    for _ in range(passes if on_one_core() else 3 * passes):
        for step, figures in zip(steps, one_pass(train, batches), strict=True):
            step.append(figures)
            step.sort()
        if all(len(step) >= passes and step[passes - 1][0] < QUIET for step in steps):
            break
    medians = np.array([np.median(step[:passes], axis=0) for step in steps])
    by_others, taken = medians.T
    return float(taken.sum()), float(np.average(by_others, weights=taken))


def one_pass(train: Train, batches: list[Batch]) -> list[tuple[float, float]]:
    """Returns load and seconds of a step on each batch."""
    ends: list[Clocks] = []
    # The first step is additional, because it includes the start of `fit`.
    train([batches[-1], *batches], lambda: ends.append(Clocks.now()))
    return [
        (end.taken_by_others(start), end.seconds_since(start))
        for start, end in itertools.pairwise(ends)
    ]
