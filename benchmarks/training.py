"""Compares training speed with PyTorch's Transformer, Marian, JoeyNMT and KerasHub.

The speed is in target tokens per second, without padding. Ours and KerasHub train with
`fit`, the others with a PyTorch loop, on the same batches with float32, Adam and label
smoothing 0.1 (KerasHub's model without: Keras requires one-hot targets for it). Each
side runs in a separate process with the default number of threads of its library. The
sides alternate. A process first trains twice on each shape of batch. The difference of
the two times is compilation. Then it trains on all batches several times.

The fraction of the ceiling is the rate of operations in the matrix multiplications of
tokens without padding, divided by the highest rate of NumPy, PyTorch and JAX for
matrices of these sizes. Memory is the peak without the resident memory before the model
is built (on Linux).

    python benchmarks/training.py --sizes tiny small

On a GPU, the processes of all sides take turns, and the ceiling is the rate of products
of large matrices in the process of the side. Steps run asynchronously; memory is the
peak on the GPU. `--random-lengths` needs no TensorFlow, and `--kernels` prints the
kernels of a step.

The benchmark repeats steps in which other processes used a tenth of the machine or
more, and reports their load in the measured steps. On one core (`taskset --cpu-list 0
python …`) seconds are processor time, which other processes affect little.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from training_sides.batches import make_batches, make_random_batches
from training_sides.devices import gpu_name
from training_sides.kernels import kernels
from training_sides.measuring import Figures, finish, measure, measure_parts, start
from training_sides.products import MULTIPLY, multiplications
from training_sides.setting import Setting

SIZES = ("tiny", "small", "base", "big")
MOST_KERNELS = 25
BACKENDS = ("jax", "torch", "tensorflow", "tensorflow-xla", "torch-compiled")


@dataclasses.dataclass(frozen=True)
class Side:
    """A row of the table: a module and the options with which it is built."""

    name: str
    module: str
    backend: str = "torch"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.module == "ours"


TORCH_SIDES = {
    "transformer": Side("nn.Transformer", "torch_transformer"),
    "transformer-compiled": Side(
        "nn.Transformer, compiled",
        "torch_transformer",
        options={"compiled": True},
    ),
    "marian": Side("Marian", "marian"),
    "marian-compiled": Side("Marian, compiled", "marian", options={"compiled": True}),
    "joeynmt": Side("JoeyNMT", "joey_nmt"),
}
REQUIRES = {
    "marian": "transformers",
    "marian-compiled": "transformers",
    "joeynmt": "joeynmt",
}
PEERS = ("keras_hub", *TORCH_SIDES)


def main() -> None:
    """Prints a table per size and, with `--json`, writes all figures."""
    options = parse_arguments()
    sides = choose_sides(options.backends, options.peers)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "batches.npz")
        make, texts = make_batches, (options.source, options.target)
        if options.random_lengths:
            make, texts = make_random_batches, options.random_lengths
        description = in_a_process(
            make, path, texts, options.tokens_per_batch, options.steps
        )
        print(environment())
        print(f"{options.tokens_per_batch} tokens per batch: {description}")
        settings = [
            Setting(
                size,
                options.dropout,
                options.tokens_per_batch,
                dtype,
                options.attention_dropout,
            )
            for size in options.sizes
            for dtype in options.dtype
        ]
        if options.kernels or options.profile:
            print_parts = print_kernels if options.kernels else print_profile
            for setting in settings:
                print_parts(setting, path, options)
            return
        measure_all = measure_rounds if gpu_name() is None else measure_on_gpu
        for setting, rounds in measure_all(sides, settings, path, options):
            results[f"{setting.size}, {setting.dtype}"] = rounds
            print_table(setting, sides, rounds)
            if options.json:
                write_json(options, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", metavar="FILE", help="source text; default: generated"
    )
    parser.add_argument("--target", metavar="FILE", help="target text")
    parser.add_argument(
        "--random-lengths",
        nargs=2,
        type=int,
        metavar="N",
        help="random ids of sources and targets of these lengths in place of texts; "
        "TensorFlow is not needed",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES[:3])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS[:4])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--tokens-per-batch", type=int, default=2048, metavar="N")
    parser.add_argument("--dropout", type=float, default=0.1, metavar="RATE")
    parser.add_argument(
        "--attention-dropout",
        type=float,
        metavar="RATE",
        help="of ours; default: that of the other layers",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
        default=["float32"],
        help="of the Keras models; the others use float32, and on a GPU autocast",
    )
    parser.add_argument("--steps", type=int, default=8, help="batches per pass")
    parser.add_argument(
        "--passes", type=int, default=3, help="measured passes per process"
    )
    parser.add_argument("--repeats", type=int, default=3, help="processes per side")
    parser.add_argument(
        "--profile",
        choices=("jax", "torch", "tensorflow"),
        help="print the time of the parts of a step on this backend instead",
    )
    parser.add_argument(
        "--kernels",
        choices=("jax", "torch", "torch-compiled"),
        help="print the kernels of a step on a GPU instead",
    )
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def choose_sides(backends: list[str], peers: list[str]) -> list[Side]:
    """Returns the sides whose packages are installed."""
    sides = []
    for name in backends:
        backend, _, compiled = name.partition("-")
        if not is_installed(backend):
            continue
        options = {"jit_compile": True} if compiled else {}
        sides.append(Side(f"ours, {name}", "ours", backend, options))
        if "keras_hub" in peers and is_installed("tensorflow"):
            sides.append(Side(f"KerasHub, {name}", "keras_hub", backend, options))
    return sides + [
        side
        for name, side in TORCH_SIDES.items()
        if name in peers and is_installed(REQUIRES.get(name, "torch"))
    ]


def environment() -> str:
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in ("keras", "tensorflow", "jax", "torch", "transformers")
        if is_installed(package)
    ]
    gpu = "" if gpu_name() is None else f"{gpu_name()}, "
    return f"{gpu}{len(os.sched_getaffinity(0))} cores, {', '.join(versions)}"


def is_installed(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"skipped, not installed: {package}")
    return found


# A setting and the figures of all sides, by round.
Measured = Iterator[tuple[Setting, list[dict[str, Figures]]]]


def measure_rounds(
    sides: list[Side], settings: list[Setting], path: str, options: argparse.Namespace
) -> Measured:
    """Yields the figures of each setting."""
    for setting in settings:
        rounds = []
        for number in range(options.repeats):
            speeds = {
                library: in_a_process(multiplications, library, setting)
                for library in MULTIPLY
            }
            label = f"{setting.size}, round {number + 1}"
            report(f"{label}: operations per second", speeds)
            ceiling = max(speeds.values())
            figures = {}
            for side in sides:
                work = (side.module, side.options, setting, path, options.passes)
                row = in_a_process(measure, *work, backend=side.backend)
                row["utilisation"] = row.pop("flops_per_second") / ceiling
                report(f"{label}: {side.name}", row)
                figures[side.name] = row
            rounds.append(figures)
        yield setting, rounds


def measure_on_gpu(
    sides: list[Side], settings: list[Setting], path: str, options: argparse.Namespace
) -> Measured:
    """Yields the figures of each setting.

    The processes of all sides stay, and take turns. They compile at the same time. The
    ceiling is the rate of large products in the process of the side.
    """
    for setting in settings:
        with contextlib.ExitStack() as stack:
            workers = {
                side.name: stack.enter_context(worker(side.backend)) for side in sides
            }
            starting = [
                workers[side.name].submit(
                    start, side.module, side.options, setting, path
                )
                for side in sides
            ]
            for work in starting:
                work.result()
            rounds = []
            for number in range(options.repeats):
                figures = {}
                for side in sides:
                    row = workers[side.name].submit(finish, options.passes).result()
                    row["utilisation"] = row.pop("flops_per_second") / row["ceiling"]
                    report(f"{setting.size}, round {number + 1}: {side.name}", row)
                    figures[side.name] = row
                rounds.append(figures)
        yield setting, rounds


def worker(backend: str) -> ProcessPoolExecutor:
    os.environ.update(
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
        # Processes share the GPU.
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
        TF_FORCE_GPU_ALLOW_GROWTH="true",
    )
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    executor.submit(os.getpid).result()  # Starts the process with this environment.
    return executor


def report(label: str, figures: Figures) -> None:
    line = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
    print(f"{time.strftime('%H:%M:%S')} {label}: {line}", file=sys.stderr, flush=True)


def in_a_process(
    function: Callable[..., Any], *arguments: Any, backend: str = "torch"
) -> Any:
    with worker(backend) as process:
        return process.submit(function, *arguments).result()


def print_table(
    setting: Setting, sides: list[Side], rounds: list[dict[str, Figures]]
) -> None:
    """Prints a row per side with medians of all rounds."""

    def median(name: str, figure: str) -> float:
        return statistics.median(figures[name][figure] for figures in rounds)

    peers = [side.name for side in sides if not side.is_ours]
    best = max(peers, key=lambda name: median(name, "tokens_per_second"), default=None)
    print(f"\n{setting.size}, dropout {setting.dropout}, {setting.dtype}\n")
    print(
        "| | tokens/s | lowest to highest | ratio to the best peer | of the ceiling |",
        end="",
    )
    print(" compilation, s | additional MB | load of others |\n|" + " --- |" * 8)
    for side in sides:
        speeds = [figures[side.name]["tokens_per_second"] for figures in rounds]
        cells = [
            side.name,
            f"{statistics.median(speeds):,.0f}",
            f"{min(speeds):,.0f} to {max(speeds):,.0f}",
            f"{ratio(rounds, side.name, best):.2f}" if best else "",
            f"{median(side.name, 'utilisation'):.0%}",
            f"{median(side.name, 'compile_seconds'):.0f}",
            f"{median(side.name, 'extra_mb'):,.0f}",
            f"{median(side.name, 'taken_by_others'):.0%}",
        ]
        print("|", " | ".join(cells), "|")


def print_profile(setting: Setting, path: str, options: argparse.Namespace) -> None:
    parts = in_a_process(
        measure_parts, setting, path, options.passes, backend=options.profile
    )
    step = sum(parts.values())
    print(f"\n{setting.size} on {options.profile}: {step:.0f} ms per step")
    for name, milliseconds in parts.items():
        print(f"{name:16}{milliseconds:8.0f} ms {milliseconds / step:5.0%}")


def print_kernels(setting: Setting, path: str, options: argparse.Namespace) -> None:
    backend, _, compiled = options.kernels.partition("-")
    build = {"jit_compile": True} if compiled else {}
    found = in_a_process(kernels, backend, setting, path, build, backend=backend)
    step = sum(milliseconds for milliseconds, _ in found.values())
    print(f"\n{setting.size} on {options.kernels}: {step:.1f} ms of kernels per step")
    for name, (milliseconds, calls) in list(found.items())[:MOST_KERNELS]:
        print(f"{milliseconds:8.2f} ms {calls:6.0f} × {name[:90]}")
    fused = {name: ms for name, (ms, _) in found.items() if is_fused_attention(name)}
    print(f"fused attention: {sum(fused.values()):.2f} ms, {', '.join(fused) or None}")


def is_fused_attention(name: str) -> bool:
    names = "flash", "fmha", "cudnn_generated", "sdpa", "fused_attention"
    return any(each in name.lower() for each in names)


def ratio(rounds: list[dict[str, Figures]], name: str, best: str) -> float:
    """Returns the median ratio of a side's speed to that of the best peer."""
    return statistics.median(
        figures[name]["tokens_per_second"] / figures[best]["tokens_per_second"]
        for figures in rounds
    )


def write_json(options: argparse.Namespace, results: dict[str, Any]) -> None:
    with open(options.json, "w") as file:
        json.dump({"options": vars(options), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
