"""Training and decoding on a GPU, in parts that each have a limit of time.

Each part runs in a process of its own and prints its row at once, so that a run that is
cut off has the rows before. A row of training has the target tokens per second of
`training.py` (random ids of one shape), the seconds of compilation, the peak memory,
and for a single step: the launches of kernels and of graphs, the operations of PyTorch
that start from Python, and the time for which the GPU is busy. No TensorFlow and no
network is needed. Without a GPU, `--sizes tiny --tokens-per-batch 256` tries it.

    python benchmarks/gpu.py --seconds 560
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import training
from measuring import environment, gpu_name, print_header, print_row, report

from keras_transformer.backend import step_graph

# Most seconds of each part: a side of `training.py`, or another command.
LIMITS = {
    "ours, torch-compiled": 240,
    "transformer-compiled": 150,
    "ours, torch-eager": 100,
    "ours, jax": 150,
    "own-masks": 240,  # "ours, torch-compiled" with the random generator of inductor
    "tests": 120,
    "tests, compiled": 180,
    "decoding, torch": 150,
    "decoding, jax": 150,
}
TESTS = (
    "tests/training/test_torch_graph.py",
    "tests/layers/test_residual.py",
    "tests/training/test_losses.py",
)
COLUMNS = (
    *("", "tokens/s", "compilation, s", "MB", "ms a step"),
    *("launches", "graphs", "operations", "GPU busy, ms"),
)


def main() -> None:
    """Runs the parts one after the other."""
    options = parse_arguments()
    if options.child:
        run_child(*options.child)
        return
    end = time.monotonic() + options.seconds
    print(environment(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "batches.npz")
        vocabulary = options.vocabulary_size
        length = options.length
        for size in options.sizes:
            print(
                training.make_random_batches(
                    path,
                    (length, length),
                    options.tokens_per_batch,
                    options.steps,
                    vocabulary,
                )
            )
            print(f"\n{size}, {options.dtype}, dropout 0.1\n")
            print_header(*COLUMNS)
            setting = json.dumps(
                {
                    "size": size,
                    "dropout": 0.1,
                    "dtype": options.dtype,
                    "vocabulary_size": vocabulary,
                    "tie_embeddings": "all",
                }
            )
            for part in options.parts:
                run_part(part, setting, path, end)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=training.SIZES, default=["base"])
    parser.add_argument("--parts", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--tokens-per-batch", type=int, default=8192, metavar="N")
    parser.add_argument("--length", type=int, default=64, metavar="N")
    parser.add_argument("--vocabulary-size", type=int, default=32000, metavar="N")
    parser.add_argument("--steps", type=int, default=20, help="batches per pass")
    parser.add_argument(
        "--dtype", default="mixed_bfloat16", choices=("float32", "mixed_bfloat16")
    )
    parser.add_argument("--seconds", type=float, default=560, help="of all parts")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_part(part: str, setting: str, path: str, end: float) -> None:
    """Runs a part in a process, until its limit or that of the whole run."""
    limit = min(LIMITS[part], end - time.monotonic())
    if limit < 20:
        print_row(part, "no time left")
        return
    report(part, f"at most {limit:.0f} s")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax" if part.endswith("jax") else "torch",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": f"{pathlib.Path.cwd()}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, __file__, "--child", part, setting, path]
    if part.startswith("tests"):
        command = [sys.executable, "-m", "pytest", "-W", "default", "--tb=short"]
        command += ["-p", "no:cacheprovider", "--disable-warnings"]
        command += ["--show-capture=no"]
        if part == "tests":
            command += ["-m", "not slow", *TESTS]
        else:
            command += ["-k", "compiled and (modern or micro)", TESTS[0]]
    elif part.startswith("decoding"):
        size = json.loads(setting)["size"]
        command = [
            *(sys.executable, str(pathlib.Path(__file__).with_name("decoding.py"))),
            *("--dtype", "bfloat16", "--beams", "4", "--repeats", "1"),
            *("--sizes", "tiny" if size == "tiny" else "small", "--peers"),
            *("--batches", "64", "--sentences", "64"),
            *("--backends", part.partition(", ")[2]),
        ]
    start = time.monotonic()
    try:
        code = subprocess.run(command, env=environment, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        code = -1
        print_row(part, f"ended after {limit:.0f} s")
    if code > 0:
        print_row(part, f"failed with exit status {code}")
    report(part, f"took {time.monotonic() - start:.0f} s")


def run_child(part: str, setting: str, path: str) -> None:
    """Measures a side and prints its row."""
    side = part
    if part == "own-masks":
        side = "ours, torch-compiled"
        step_graph.OPTIONS["fallback_random"] = False
    if not part.endswith("jax"):
        report_graphs()
    profile = no_profile if part.endswith("jax") else profile_step
    found = training.measure(
        side, training.Setting(**json.loads(setting)), path, passes=3, after=profile
    )
    tokens = training.tokens(training.read_batches(path)[:1])
    print_row(
        part,
        f"{found['tokens_per_second']:,.0f}",
        f"{found['compile_seconds']:.0f}",
        f"{found['extra_mb']:,.0f}",
        f"{tokens / found['tokens_per_second'] * 1000:.1f}",
        *(f"{found[name]:,.1f}" for name in PROFILED if name in found),
    )


def report_graphs() -> None:
    """Reports when a graph of ours has been recorded and goes to the compiler."""
    compile_graph = step_graph.compile_graph

    def compile_and_report(graph: Any) -> Any:
        report(f"recorded {len(graph.graph.nodes)} nodes")
        return compile_graph(graph)

    step_graph.compile_graph = compile_and_report


PROFILED = ("launches", "graphs", "operations", "busy_ms")


def no_profile(train: training.Train, batches: list[training.Batch]) -> dict[str, Any]:
    return {}


def profile_step(
    train: training.Train, batches: list[training.Batch]
) -> dict[str, float]:
    """Counts what PyTorch starts in a step, and prints the longest operations."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = gpu_name() is not None
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    steps = min(3, len(batches))
    with profile(activities=kinds) as recorded:
        train(batches[:steps], 1)
        if on_gpu:
            torch.cuda.synchronize()
    events = recorded.key_averages()

    def count(is_counted: Callable[[str], bool]) -> float:
        return sum(e.count for e in events if is_counted(e.key)) / steps

    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = events.table(sort_by=key, row_limit=15, max_name_column_width=50)
    print(table, file=sys.stderr, flush=True)
    busy = sum(
        e.self_device_time_total
        for e in events
        if e.device_type != torch.autograd.DeviceType.CPU
    )
    return {
        "launches": count(lambda key: "LaunchKernel" in key),
        "graphs": count(lambda key: "GraphLaunch" in key),
        "operations": count(lambda key: key.startswith("aten::")),
        "busy_ms": busy / steps / 1000,
    }


if __name__ == "__main__":
    main()
