"""Measurement of a side."""

import contextlib
import importlib
import itertools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from training_sides.batches import Batch, first_of_each_shape, read_batches
from training_sides.clocks import Clocks, on_one_core, peak_mb, reset_peak, seconds
from training_sides.devices import gpu_name, peak_gpu_mb, synchronize
from training_sides.products import gpu_multiplications, training_flops
from training_sides.setting import Setting, Train

QUIET = 0.1  # maximum load of other processes in a measured step

Figures = dict[str, float]


_side: dict[str, Any] = {}


def measure(
    module: str,
    options: dict[str, Any],
    setting: Setting,
    path: str,
    passes: int,
) -> Figures:
    """Builds and trains a side and returns its figures."""
    start(module, options, setting, path)
    return finish(passes)


def start(module: str, options: dict[str, Any], setting: Setting, path: str) -> None:
    """Builds a side and trains a step on each shape of batch."""
    side = importlib.import_module(f"training_sides.{module}")
    batches = read_batches(path)
    before = 0.0 if gpu_name() else reset_peak()
    with quiet():
        train = side.build(setting, **options)
        compiling = first_steps(train, batches)
    _side.update(
        train=train, batches=batches, setting=setting, before=before, first=compiling
    )


def finish(passes: int) -> Figures:
    """Trains the side of this process and returns its figures."""
    train, batches, setting = _side["train"], _side["batches"], _side["setting"]
    flops = sum(training_flops(batch, setting.dimensions) for batch in batches)
    figures = {"compile_seconds": _side["first"]}
    with quiet():
        if gpu_name() is None:
            taken, by_others = steady_steps(train, batches, passes)
            figures["extra_mb"] = peak_mb() - _side["before"]
        else:
            taken, by_others = steady_passes(train, batches, passes), 0.0
            figures["extra_mb"] = peak_gpu_mb()
            backend = os.environ["KERAS_BACKEND"]
            ceiling = gpu_multiplications(backend, setting.dtype)
            figures["ceiling"] = ceiling
    return {
        "tokens_per_second": sum(batch.tokens for batch in batches) / taken,
        "flops_per_second": flops / taken,
        "taken_by_others": by_others,
        **figures,
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        yield


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

    def one() -> float:
        def steps() -> None:
            train(shapes, done)
            synchronize()

        return seconds(steps)

    first = one()
    return first - one()


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


def steady_passes(train: Train, batches: list[Batch], passes: int) -> float:
    """Returns the median of the seconds of all batches on a GPU.

    The steps run asynchronously, so that a pass is timed as a whole: with all batches
    twice, and once. The difference does not include the start and the end of `fit`.
    """

    def one(batches: list[Batch]) -> float:
        def steps() -> None:
            train(batches, lambda: None)
            synchronize()

        return seconds(steps)

    one(batches)
    return float(np.median([one(2 * batches) - one(batches) for _ in range(passes)]))


def one_pass(train: Train, batches: list[Batch]) -> list[tuple[float, float]]:
    """Returns load and seconds of a step on each batch."""
    ends: list[Clocks] = []
    # The first step is additional, because it includes the start of `fit`.
    train([batches[-1], *batches], lambda: ends.append(Clocks.now()))
    return [
        (end.taken_by_others(start), end.seconds_since(start))
        for start, end in itertools.pairwise(ends)
    ]
