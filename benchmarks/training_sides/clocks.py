"""Time and memory of this process, and the load of other processes."""

import os
import pathlib
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np


class Clocks(NamedTuple):
    """Wall time, processor time of this process, and times of all cores."""

    wall: float
    process: float
    idle: float
    cores: float

    @classmethod
    def now(cls) -> Self:
        line = pathlib.Path("/proc/stat").read_text().partition("\n")[0]
        cores = [int(value) / os.sysconf("SC_CLK_TCK") for value in line.split()[1:9]]
        idle = cores[3] + cores[4]
        return cls(time.perf_counter(), time.process_time(), idle, sum(cores))

    def seconds_since(self, start: Self) -> float:
        """Returns wall time, or processor time if the process has a single core."""
        clock = "process" if on_one_core() else "wall"
        return getattr(self, clock) - getattr(start, clock)

    def taken_by_others(self, start: Self) -> float:
        """Returns the fraction of processor time that others used, with the host."""
        _, process, idle, cores = np.subtract(self, start)
        return max(0.0, 1 - (process + idle) / max(cores, 1e-9))


def on_one_core() -> bool:
    return len(os.sched_getaffinity(0)) == 1


def seconds(call: Callable[[], Any]) -> float:
    start = Clocks.now()
    call()
    return Clocks.now().seconds_since(start)


def reset_peak() -> float:
    """Resets the peak memory and returns the resident memory in MB."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def peak_mb() -> float:
    """Returns the peak memory since `reset_peak` in MB."""
    return _resident("VmHWM")


def _resident(field: str) -> float:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{field}:\s*(\d+) kB", status)[0]) / 1024
