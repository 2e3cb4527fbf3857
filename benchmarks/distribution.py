"""Measures what it costs that two processes train together.

One process that is pinned to one core trains a model on JAX with `fit`, and then two
processes, each pinned to one core, train it on the same batches with `distribute`. The
processes communicate over the loopback interface, so the result is the overhead of the
collectives there: of a network and of accelerators it says nothing. Without overhead,
two processes are twice as fast. The sides alternate.

The benchmark also measures how long a process takes to make the batches, which every
process does: the part of a step that more processes do not divide.

    python benchmarks/distribution.py --sizes tiny small --repeats 3
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

SIZES = {"tiny": "transformer_tiny", "small": "transformer_small"}
PAIRS, LENGTH, VOCABULARY = 64, 32, 8_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny"])
    parser.add_argument("--steps", type=int, default=8, help="measured steps")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        size, steps, processes, index, port = options.worker
        train(size, int(steps), int(processes), int(index), port)
        return
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("The benchmark needs two cores.")
    print("| size | processes | tokens/s | ratio | batches, share of a step |")
    print("| --- | --- | --- | --- | --- |")
    for size in options.sizes:
        compare(size, options.steps, options.repeats)


def compare(size: str, steps: int, repeats: int) -> None:
    """Prints the rows of a size."""
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(repeats):
        for processes, results in found.items():
            results.append(run(size, steps, processes))
    speeds = {
        processes: statistics.median(each["tokens_per_second"] for each in results)
        for processes, results in found.items()
    }
    for processes, speed in speeds.items():
        share = statistics.median(each["reading"] for each in found[processes])
        ratio = speed / speeds[1]
        print(f"| {size} | {processes} | {speed:,.0f} | {ratio:.2f} | {share:.1%} |")


def run(size: str, steps: int, processes: int) -> dict[str, float]:
    """Trains with a number of processes; returns the figures of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    cores = sorted(os.sched_getaffinity(0))
    root = str(pathlib.Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    started = [
        subprocess.Popen(
            [
                *("taskset", "--cpu-list", str(cores[index]), sys.executable, __file__),
                *("--worker", size, str(steps), str(processes), str(index), port),
            ],
            env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    outputs = [each.communicate() for each in started]
    for each, (_, errors) in zip(started, outputs, strict=True):
        if each.returncode:
            raise SystemExit(errors)
    result: dict[str, float] = json.loads(outputs[0][0].splitlines()[-1])
    return result


def train(size: str, steps: int, processes: int, index: int, port: str) -> None:
    """Trains in this process, together with the others; prints its figures."""
    import keras

    import keras_transformer as kt

    if processes > 1:
        keras.distribution.initialize(f"127.0.0.1:{port}", processes, index)
    lines = texts(PAIRS * steps)
    tokenizer = kt.WordTokenizer.train(lines=[text for pair in lines for text in pair])
    data = kt.parallel_dataset(
        pairs=lines,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=PAIRS * LENGTH,
        max_shapes=1,
    )
    keras.utils.set_random_seed(1)
    with kt.distribute():
        model = kt.Seq2Seq.from_preset(SIZES[size], source_tokenizer=tokenizer)
        model.compile(keras.optimizers.Adam(1e-4), kt.LabelSmoothedCrossEntropy(0.1))
        options = {"epochs": 1, "shuffle": False, "verbose": 0}
        model.fit(data.dataset, **options)  # compiles
        began = time.perf_counter()
        model.fit(data.dataset, **options)
        seconds = time.perf_counter() - began
    began = time.perf_counter()
    for _ in data.dataset:
        pass
    reading = time.perf_counter() - began
    tokens = data.tokens_per_epoch / seconds
    print(json.dumps({"tokens_per_second": tokens, "reading": reading / seconds}))


def texts(count: int) -> list[tuple[str, str]]:
    """Returns pairs of sentences of equal length."""
    import numpy as np

    rng = np.random.default_rng(1)
    words = [f"w{number}" for number in range(VOCABULARY - 10)]
    rows = rng.choice(words, (count, 2, LENGTH - 1))
    return [(" ".join(source), " ".join(target)) for source, target in rows]


if __name__ == "__main__":
    main()
