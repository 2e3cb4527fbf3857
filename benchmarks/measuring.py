"""Processes, clocks, memory and tables of the benchmarks."""

import functools
import importlib.metadata
import importlib.util
import multiprocessing
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
PACKAGES = (*BACKENDS, "keras", "transformers", "ctranslate2")


# The machine.


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def environment() -> str:
    """Returns the GPU, the number of cores and the versions of the packages."""
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in PACKAGES
        if is_installed(package)
    ]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return ", ".join([*filter(None, [gpu_name()]), cores, *versions])


@functools.cache
def gpu_name() -> str | None:
    """Returns the name of the first GPU, or `None` on a machine without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    return found.stdout.splitlines()[0].strip() if found.stdout.strip() else None


# Processes.


def worker(backend: str) -> ProcessPoolExecutor:
    """Starts a process with a backend of Keras."""
    os.environ.update(
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
        # Several processes share a GPU.
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
        TF_FORCE_GPU_ALLOW_GROWTH="true",
    )
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    executor.submit(os.getpid).result()  # Starts the process with this environment.
    return executor


def in_a_process(
    function: Callable[..., Any], *arguments: Any, backend: str = "torch"
) -> Any:
    with worker(backend) as process:
        return process.submit(function, *arguments).result()


# Time.


def clock() -> float:
    """Returns processor time on one core, where others disturb it least, else wall."""
    if len(os.sched_getaffinity(0)) == 1:
        return time.process_time()
    return time.perf_counter()


def seconds(call: Callable[[], Any]) -> float:
    start = clock()
    call()
    return clock() - start


def in_turns(
    calls: Mapping[str, Callable[[], Any]], repeats: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Returns the seconds of each repeat of each call; the calls alternate.

    Every other turn is in reverse, since a call may be slowed by threads of the
    previous one that are still spinning.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warmups + repeats):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            found = seconds(calls[name])
            if turn >= warmups:
                taken[name].append(found)
    return taken


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Returns the median of the ratios within the turns."""
    pairs = zip(numerators, denominators, strict=True)
    return statistics.median(a / b for a, b in pairs)


# Memory, on Linux.


def resident_mb(field: str = "VmRSS") -> float:
    """Returns the resident memory of this process, or with `VmHWM` its peak."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{field}:\s*(\d+) kB", status)[0]) / 1024


def reset_peak() -> float:
    """Resets the peak memory and returns the memory in use in MB; 0 on a GPU."""
    if gpu_name() is not None:
        return 0.0
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return resident_mb()


def peak_mb() -> float:
    """Returns the peak memory since `reset_peak` in MB, on a GPU that of the GPU."""
    if gpu_name() is None:
        return resident_mb("VmHWM")
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        statistics = jax.devices()[0].memory_stats() or {}
        return statistics.get("peak_bytes_in_use", 0) / 1024**2
    import torch

    return torch.cuda.max_memory_allocated() / 1024**2


# Tables.


def report(*values: Any) -> None:
    """Prints a line of progress to the standard error."""
    print(time.strftime("%H:%M:%S"), *values, file=sys.stderr, flush=True)


def print_header(*titles: str) -> None:
    print_row(*titles)
    print_row(*(["---"] * len(titles)))


def print_row(*cells: Any) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)
