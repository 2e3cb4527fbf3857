"""Functions that run in the process of a side."""

import importlib
from typing import Any

from training_sides.clocks import Clocks, peak_mb, reset_peak
from training_sides.devices import gpu_name, peak_gpu_mb

from decoding_sides.setting import Decode, Setting

_side: dict[str, Any] = {}


def start(module: str, options: dict[str, Any], setting: Setting) -> None:
    """Builds a side."""
    before = 0.0 if gpu_name() else reset_peak()
    build = importlib.import_module(f"decoding_sides.{module}").build
    _side.update(decode=build(setting, **options), before=before)


def measure(count: int, batch_size: int) -> dict[str, float]:
    """Decodes the first `count` sentences and returns the figures."""
    decode: Decode = _side["decode"]
    clocks = Clocks.now()
    decode(list(range(count)), batch_size)
    return {
        "seconds": Clocks.now().seconds_since(clocks),
        "taken_by_others": Clocks.now().taken_by_others(clocks),
        "extra_mb": peak_gpu_mb() if gpu_name() else peak_mb() - _side["before"],
    }
