"""Times training against PyTorch's Transformer, Marian, JoeyNMT and KerasHub.

Real (not padding) target tokens a second, ours and KerasHub's through `fit`, the others
in a plain PyTorch loop, on the same batches: float32, Adam, label smoothing 0.1 (none
for KerasHub's model: Keras has it for one-hot targets only). Every side runs in a
process of its own, the sides in turns, with the threads that its library takes by
itself. A process first trains twice on each shape of batch; what the first time takes
longer is compilation. Then it trains on all batches, several times.

"Of the ceiling" is how many operations a second the matrix products of real tokens
come to, by the most that NumPy, PyTorch or JAX reach at products of these sizes. Memory
is the peak less what was resident before the model was built (on Linux alone).

    python benchmarks/training.py --sizes tiny small

On a machine that others use too, it repeats steps of which these took a tenth, and
shows what they took of those that count. On one core (`taskset --cpu-list 0 python …`)
seconds are those that the process itself ran, which others hardly change.
"""

import argparse
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from training_sides.batches import make_batches
from training_sides.measuring import Figures, measure, measure_parts
from training_sides.products import MULTIPLY, multiplications
from training_sides.setting import Setting

SIZES = ("tiny", "small", "base", "big")
BACKENDS = ("jax", "torch", "tensorflow", "tensorflow-xla")


@dataclasses.dataclass(frozen=True)
class Side:
    """A row of the table: the module that builds it, and how."""

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
    "joeynmt": Side("JoeyNMT", "joey_nmt"),
}
REQUIRES = {"marian": "transformers", "joeynmt": "joeynmt"}
PEERS = ("keras_hub", *TORCH_SIDES)


def main() -> None:
    """Prints a table a size and, with --json, writes all figures."""
    options = parse_arguments()
    sides = choose_sides(options.backends, options.peers)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "batches.npz")
        description = in_a_process(
            make_batches,
            path,
            (options.source, options.target),
            options.tokens_per_batch,
            options.steps,
        )
        print(environment())
        print(f"{options.tokens_per_batch} tokens a batch: {description}")
        for size in options.sizes:
            setting = Setting(
                size, options.dropout, options.tokens_per_batch, options.dtype
            )
            if options.profile:
                print_profile(setting, path, options)
                continue
            rounds = measure_rounds(sides, setting, path, options)
            results[size] = rounds
            print_table(setting, sides, rounds)
            if options.json:
                write_json(options, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", metavar="FILE", help="text; generated if not given")
    parser.add_argument("--target", metavar="FILE", help="its translation")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES[:3])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--tokens-per-batch", type=int, default=2048, metavar="N")
    parser.add_argument("--dropout", type=float, default=0.1, metavar="RATE")
    parser.add_argument(
        "--dtype",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
        default="float32",
        help="of the Keras models; the others stay in float32",
    )
    parser.add_argument("--steps", type=int, default=8, help="batches of a pass")
    parser.add_argument("--passes", type=int, default=3, help="that count in a process")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each")
    parser.add_argument(
        "--profile",
        choices=("jax", "torch", "tensorflow"),
        help="instead: where our step spends its time on this backend",
    )
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def choose_sides(backends: list[str], peers: list[str]) -> list[Side]:
    """Ours and KerasHub's on each backend; those of PyTorch that are installed."""
    sides = []
    for name in backends:
        backend, _, xla = name.partition("-")
        options = {"jit_compile": True} if xla else {}
        sides.append(Side(f"ours, {name}", "ours", backend, options))
        if "keras_hub" in peers:
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
    return f"{len(os.sched_getaffinity(0))} cores, {', '.join(versions)}"


def is_installed(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{package} is not installed and is left out")
    return found


def measure_rounds(
    sides: list[Side], setting: Setting, path: str, options: argparse.Namespace
) -> list[dict[str, Figures]]:
    """The figures of all sides, round by round."""
    rounds = []
    for number in range(options.repeats):
        speeds = {
            library: in_a_process(multiplications, library, setting)
            for library in MULTIPLY
        }
        report(f"{setting.size}, round {number + 1}: products a second", speeds)
        ceiling = max(speeds.values())
        figures = {}
        for side in sides:
            work = (side.module, side.options, setting, path, options.passes)
            row = in_a_process(measure, *work, backend=side.backend)
            row["utilisation"] = row.pop("flops_per_second") / ceiling
            report(f"{setting.size}, round {number + 1}: {side.name}", row)
            figures[side.name] = row
        rounds.append(figures)
    return rounds


def report(label: str, figures: Figures) -> None:
    line = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
    print(f"{time.strftime('%H:%M:%S')} {label}: {line}", file=sys.stderr, flush=True)


def in_a_process(
    function: Callable[..., Any], *arguments: Any, backend: str = "torch"
) -> Any:
    os.environ.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as process:
        return process.submit(function, *arguments).result()


def print_table(
    setting: Setting, sides: list[Side], rounds: list[dict[str, Figures]]
) -> None:
    """A row a side, medians over the rounds, the ratio from round to round."""

    def median(name: str, figure: str) -> float:
        return statistics.median(figures[name][figure] for figures in rounds)

    peers = [side.name for side in sides if not side.is_ours]
    best = max(peers, key=lambda name: median(name, "tokens_per_second"), default=None)
    print(f"\n{setting.size}, dropout {setting.dropout}, {setting.dtype}\n")
    print(
        "| | tokens/s | lowest to highest | of the best peer | of the ceiling |", end=""
    )
    print(" compiling, s | extra MB | others' load |\n|" + " --- |" * 8)
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
    print(f"\n{setting.size} on {options.profile}: {step:.0f} ms a step")
    for name, milliseconds in parts.items():
        print(f"{name:16}{milliseconds:8.0f} ms {milliseconds / step:5.0%}")


def ratio(rounds: list[dict[str, Figures]], name: str, best: str) -> float:
    """Median of a side's speed by the best peer's of the same round."""
    return statistics.median(
        figures[name]["tokens_per_second"] / figures[best]["tokens_per_second"]
        for figures in rounds
    )


def write_json(options: argparse.Namespace, results: dict[str, Any]) -> None:
    with open(options.json, "w") as file:
        json.dump({"options": vars(options), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
