r"""Times what a user waits for in the first hour: a first training run, and the demo.

The lines of the command are printed with the seconds since its start, from a terminal's
point of view: nothing of an earlier run is cached but the files of the operating
system. The last line has the time from Enter to the end, and the greatest memory of the
process.

    python benchmarks/first_run.py train --source multi30k/train.en --target \
        multi30k/train.de --pairs 3000 --valid-pairs 200 --epochs 4
    python benchmarks/first_run.py demo
"""

import argparse
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from measuring import environment

ROOT = pathlib.Path(__file__).parents[1]
EPOCH = re.compile(r"Epoch (\d+)/\d+ .*, ([^,]+) left$")
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def seconds_of(duration: str) -> float:
    """Returns the seconds of a duration such as `"2 h 5 min"`."""
    parts = duration.split()
    return sum(
        float(number) * UNITS[unit]
        for number, unit in zip(parts[::2], parts[1::2], strict=True)
    )


def run(command: list[str], folder: str) -> None:
    """Runs a command, and prints its lines with the seconds since its start."""
    print(" ".join(command))
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    estimates = []
    first = process.stdout.read(1)
    appeared = time.perf_counter() - began
    for number, line in enumerate(process.stdout):
        seconds = time.perf_counter() - began
        text = f"{'' if number else first}{line.rstrip()}"
        print(f"{seconds:7.1f}  {text}", flush=True)
        if (found := EPOCH.search(text)) and int(found[1]) > 1:
            estimates.append((found[1], seconds, seconds_of(found[2])))
    _, status, usage = os.wait4(process.pid, 0)
    total = time.perf_counter() - began
    code = os.waitstatus_to_exitcode(status)
    print(f"first output after {appeared:.1f} s")
    for epoch, seconds, left in estimates:
        ratio = left / (total - seconds)
        print(f"time left after epoch {epoch}, divided by the true one: {ratio:.2f}")
    memory = usage.ru_maxrss / 2**20
    print(f"{total:.0f} s, {memory:.2f} GB at most, exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "demo"))
    parser.add_argument("--source", help="text of the first sides, for `train`")
    parser.add_argument("--target", help="text of the second sides")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--valid-pairs", type=int, default=200)
    options, others = parser.parse_known_args()
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "demo":
            example = str(ROOT / "examples/pronounce.py")
            run([sys.executable, example, *others], folder)
            return
        for side, path in (("source", options.source), ("target", options.target)):
            with open(path, encoding="utf-8") as file:
                lines = itertools.islice(file, options.pairs + options.valid_pairs)
                texts = [*lines]
            for name, part in (
                ("train", texts[: options.pairs]),
                ("valid", texts[options.pairs :]),
            ):
                pathlib.Path(folder, f"{name}.{side}").write_text("".join(part))
        files = [
            *("--train", "train.source", "train.target"),
            *("--valid", "valid.source", "valid.target"),
        ]
        train = [sys.executable, "-m", "keras_transformer_runtime", "train"]
        run([*train, *files, "--output", "run", *others], folder)


if __name__ == "__main__":
    main()
