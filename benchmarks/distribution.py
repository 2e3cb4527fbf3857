"""Measures what it costs that two processes train together.

One process that is pinned to one core trains a model on JAX or PyTorch with `fit`, and
then two processes, each pinned to one core, train it on the same batches with
`distribute`. The
processes communicate over the loopback interface, so the result is the overhead of the
collectives there: of a network and of accelerators it says nothing. Without overhead,
two processes are twice as fast. The sides alternate.

    python benchmarks/distribution.py --sizes tiny small --repeats 3
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

from measuring import environment, median_ratio, print_header, print_row

SIZES = {"tiny": "transformer_tiny", "small": "transformer_small"}
PAIRS, LENGTH, VOCABULARY = 64, 32, 8_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny"])
    parser.add_argument("--backend", choices=("jax", "torch"), default="jax")
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
    print(f"{environment()}\n")
    print(f"KERAS_BACKEND={options.backend}\n")
    print_header("size", "processes", "tokens/s", "ratio")
    for size in options.sizes:
        speeds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(options.repeats):
            for processes, found in speeds.items():
                found.append(run(options.backend, size, options.steps, processes))
        for processes, found in speeds.items():
            speed, ratio = statistics.median(found), median_ratio(found, speeds[1])
            print_row(size, processes, f"{speed:,.0f}", f"{ratio:.2f}")


def run(backend: str, size: str, steps: int, processes: int) -> float:
    """Trains with a number of processes; returns tokens per second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    cores = sorted(os.sched_getaffinity(0))
    started = [
        subprocess.Popen(
            [
                *("taskset", "--cpu-list", str(cores[index]), sys.executable, __file__),
                *("--worker", size, str(steps), str(processes), str(index), port),
            ],
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                **launched_by_torchrun(index, processes, port),
            },
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
    return float(outputs[0][0].splitlines()[-1])


def launched_by_torchrun(index: int, processes: int, port: str) -> dict[str, str]:
    """Returns the variables that `torchrun` sets, without its own process."""
    return {
        **{"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(processes)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    }


def train(size: str, steps: int, processes: int, index: int, port: str) -> None:
    """Trains in this process, together with the others; prints tokens per second."""
    import keras

    import keras_transformer as kt

    if processes > 1 and keras.backend.backend() == "jax":
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
    print(data.tokens_per_epoch / seconds)


def texts(count: int) -> list[tuple[str, str]]:
    """Returns pairs of sentences of equal length."""
    import numpy as np

    rng = np.random.default_rng(1)
    words = [f"w{number}" for number in range(VOCABULARY - 10)]
    rows = rng.choice(words, (count, 2, LENGTH - 1))
    return [(" ".join(source), " ".join(target)) for source, target in rows]


if __name__ == "__main__":
    main()
