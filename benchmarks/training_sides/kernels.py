"""The kernels of a training step on a GPU."""

import collections
import pathlib
import sys
import tempfile
from typing import Any

from training_sides.batches import read_batches
from training_sides.devices import synchronize
from training_sides.setting import Setting

STEPS = 3

# Milliseconds and calls of a step, by the name of the kernel.
Kernels = dict[str, tuple[float, float]]


def kernels(backend: str, setting: Setting, path: str, options: Any) -> Kernels:
    """Returns time and calls of the kernels of a step, longest first."""
    from training_sides.ours import build  # Keras, on this process's backend.

    batches = read_batches(path)[:1] * STEPS
    train = build(setting, **options)

    def steps() -> None:
        train(batches, lambda: None)
        synchronize()

    steps()
    steps()
    found = _jax(steps) if backend == "jax" else _torch(steps)
    ordered = sorted(found.items(), key=lambda item: -item[1][0])
    return {name: (ms / STEPS, calls / STEPS) for name, (ms, calls) in ordered}


def _torch(steps: Any) -> Kernels:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        steps()
    return {
        event.key: (event.self_device_time_total / 1e3, event.count)
        for event in found.key_averages()
        if event.device_type != DeviceType.CPU
    }


def _jax(steps: Any) -> Kernels:
    import jax

    times: dict[str, list[float]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            steps()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
        lines = [
            (plane.name, line.name) for plane in data.planes for line in plane.lines
        ]
        print(*sorted(set(lines))[:40], file=sys.stderr)
        for plane in data.planes:
            if "/device:" not in plane.name:
                continue
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        times[event.name].append(event.duration_ns / 1e6)
    return {name: (sum(each), len(each)) for name, each in times.items()}
