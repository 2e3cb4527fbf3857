"""Time and memory of this process, and what others take of the machine."""

import os
import pathlib
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np


class Clocks(NamedTuple):
    """Seconds of the wall, of this process's threads and of the machine's cores."""

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
        """By the wall; on one core by the process, which others disturb less."""
        clock = "process" if on_one_core() else "wall"
        return getattr(self, clock) - getattr(start, clock)

    def taken_by_others(self, start: Self) -> float:
        """Share of the cores' time since `start`, from 0 to 1, the host's included."""
        _, process, idle, cores = np.subtract(self, start)
        return max(0.0, 1 - (process + idle) / max(cores, 1e-9))


def on_one_core() -> bool:
    return len(os.sched_getaffinity(0)) == 1


def seconds(call: Callable[[], Any]) -> float:
    start = Clocks.now()
    call()
    return Clocks.now().seconds_since(start)


def reset_peak() -> float:
    """Forgets the peak of memory so far; MB in memory now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def peak_mb() -> float:
    """Most MB in memory since `reset_peak`."""
    return _resident("VmHWM")


def _resident(field: str) -> float:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{field}:\s*(\d+) kB", status)[0]) / 1024
