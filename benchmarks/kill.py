"""Kills training many times and compares every loss with an uninterrupted run.

For each backend a small Transformer learns to reverse words, with dropout, Adam and a
learning rate schedule, first without interruption. Then the same command is killed with
SIGKILL and started again until the run is complete. Further runs follow until the
number of kills is reached. Every second kill waits until a checkpoint is being written;
the others come at a random time. The loss of a step is the mean over the epoch so far,
as `fit` reports it. A step that is made twice is compared twice.

    python benchmarks/kill.py --kills 20 --backends jax torch
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
EPOCHS, PAIRS, SAVE_EVERY = 4, 400, 7

# The loss of each step of a process, by epoch and batch from 0.
Losses = dict[tuple[int, int], float]


@dataclasses.dataclass
class Counts:
    """Figures of a backend."""

    kills: int = 0
    in_a_write: int = 0
    mid_epoch_resumes: int = 0
    steps: int = 0
    largest_difference: float = 0.0


def main() -> None:
    """Prints the table and, with --json, writes the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=installed())
    parser.add_argument("--kills", type=int, default=10, help="kills per backend")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times to kill")
    parser.add_argument("--json", metavar="FILE", help="file for the figures")
    parser.add_argument("--train", metavar="FOLDER", help="train (for internal use)")
    options = parser.parse_args()
    if options.train:
        train(pathlib.Path(options.train))
        return
    figures = {}
    print(
        "backend      kills  in a write  mid-epoch resumes  steps  largest difference"
    )
    for backend in options.backends:
        counts = measure(backend, options.kills, options.seed)
        figures[backend] = dataclasses.asdict(counts)
        print(
            f"{backend:<11}{counts.kills:>7}{counts.in_a_write:>12}"
            f"{counts.mid_epoch_resumes:>19}{counts.steps:>7}"
            f"{counts.largest_difference:>20.1e}",
            flush=True,
        )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures))


def installed() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name)]


def measure(backend: str, kills: int, seed: int) -> Counts:
    """Kills processes of one backend and compares their losses."""
    counts = Counts()
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        max_delay = training_time(backend, folder / "whole") / 2
        (whole,) = losses(folder / "whole")
        run = 0
        while counts.kills < kills:
            killed = folder / f"killed-{run}"
            kill_until_complete(backend, killed, kills, max_delay, generator, counts)
            processes = losses(killed)
            difference = largest_difference(processes, whole)
            counts.largest_difference = max(counts.largest_difference, difference)
            counts.mid_epoch_resumes += sum(min(steps)[1] > 0 for steps in processes)
            counts.steps += sum(map(len, processes))
            run += 1
    return counts


def training_time(backend: str, folder: pathlib.Path) -> float:
    """Trains without interruption; returns the seconds after the first step."""
    process = start(backend, folder)
    wait_for_a_step(process, folder)
    started = time.perf_counter()
    wait(process, folder)
    return time.perf_counter() - started


def kill_until_complete(
    backend: str,
    folder: pathlib.Path,
    kills: int,
    max_delay: float,
    generator: random.Random,
    counts: Counts,
) -> None:
    """Starts and kills a run until it is complete."""
    is_complete = False
    while not is_complete:
        process = start(backend, folder)
        if counts.kills < kills:
            wait_for_a_step(process, folder)
            time.sleep(generator.uniform(0, max_delay))
            if counts.kills % 2:
                wait_for_a_write(process, folder)
            process.send_signal(signal.SIGKILL)
        is_complete = wait(process, folder)
        if not is_complete:
            counts.kills += 1
            counts.in_a_write += any(folder.glob("*/.unfinished-*"))


def start(backend: str, folder: pathlib.Path) -> subprocess.Popen:
    """Starts a process that trains, or resumes training."""
    folder.mkdir(exist_ok=True)
    with open(folder / "errors", "w") as errors:
        return subprocess.Popen(
            [sys.executable, __file__, "--train", str(folder)],
            # In a small model, additional threads only wait for each other.
            env={"OMP_NUM_THREADS": "1", **os.environ, "KERAS_BACKEND": backend},
            stderr=errors,
        )


def wait(process: subprocess.Popen, folder: pathlib.Path) -> bool:
    """Waits for a process; returns whether it was not killed."""
    code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError((folder / "errors").read_text())
    return code == 0


def wait_for_a_step(process: subprocess.Popen, folder: pathlib.Path) -> None:
    """Waits until a process has made its first step."""
    before = sum(path.stat().st_size > 0 for path in folder.glob("process-*"))
    while process.poll() is None:
        if sum(path.stat().st_size > 0 for path in folder.glob("process-*")) > before:
            return
        time.sleep(0.001)


def wait_for_a_write(process: subprocess.Popen, folder: pathlib.Path) -> None:
    """Waits until a process writes a checkpoint."""
    while process.poll() is None and not any(folder.glob("*/.unfinished-*")):
        pass


def losses(folder: pathlib.Path) -> list[Losses]:
    """Returns the losses of each process of a run that has made a step."""
    texts = [path.read_text() for path in sorted(folder.glob("process-*"))]
    rows = [map(json.loads, text.splitlines()) for text in texts if text]
    return [{(epoch, batch): loss for epoch, batch, loss in steps} for steps in rows]


def largest_difference(processes: list[Losses], whole: Losses) -> float:
    """Compares the losses of all processes of a run with the uninterrupted run."""
    if set().union(*processes) != whole.keys():
        raise RuntimeError("The killed run has other steps than the uninterrupted run.")
    return max(abs(whole[step] - loss) for p in processes for step, loss in p.items())


def train(folder: pathlib.Path) -> None:
    """Trains the model; this run is killed."""
    import keras

    import keras_transformer as kt

    class Log(keras.callbacks.Callback):
        """Writes the loss of each step immediately."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = self.epoch, batch + self.params.get("first_batch", 0)
            os.write(log, f"{json.dumps([*step, logs['loss']])}\n".encode())

    number = len(list(folder.glob("process-*")))
    log = os.open(folder / f"process-{number:04}", os.O_WRONLY | os.O_CREAT)
    is_resumed = any(folder.glob("run/*.npz"))
    keras.utils.set_random_seed(1000 + number if is_resumed else 7)
    words = random.Random(1)
    words = ["".join(words.choices("abcdefghij", k=7)) for _ in range(PAIRS)]
    tokenizer = kt.CharacterTokenizer.train(lines=words)
    tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    data = kt.parallel_dataset(
        pairs=[(word, word[::-1]) for word in words],
        tokens_per_batch=120,
        **tokenizers,
    )
    model = kt.Seq2Seq(
        num_layers=1, hidden_dim=32, intermediate_dim=64, num_heads=4, **tokenizers
    )
    model.compile(
        optimizer=keras.optimizers.Adam(kt.WarmupInverseSquareRoot(4e-3, 50)),
        loss=kt.LabelSmoothedCrossEntropy(),
        metrics=[kt.Perplexity()],
    )
    checkpoints = kt.Checkpoints(folder / "run", data, SAVE_EVERY)
    model.fit(
        data.dataset,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[Log(), checkpoints],
    )


if __name__ == "__main__":
    main()
