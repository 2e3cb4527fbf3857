"""Kills training again and again, and compares every loss with a run left alone.

For each backend a small Transformer learns to spell words backwards, with dropout,
Adam and a learning-rate schedule, once without interruption. Then the same command is
killed with SIGKILL and started again until it gets to the end; if that was too soon,
another run begins. Every second kill waits until a checkpoint is being written, the
others come at any moment. The loss of a step is what `fit` reports after it, the mean
of the epoch so far; a step that was made twice is compared twice.

    python benchmarks/kill.py --kills 20 --backends jax torch
"""

import argparse
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

Losses = dict[tuple[int, int], float]


def main() -> None:
    """Prints the table and, with --json, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=installed())
    parser.add_argument("--kills", type=int, default=10, help="of each backend")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--train", metavar="FOLDER", help="(what is then killed)")
    options = parser.parse_args()
    if options.train:
        train(pathlib.Path(options.train))
        return
    figures = {}
    print("backend      kills  in a write  amid an epoch  steps  largest difference")
    for backend in options.backends:
        figures[backend] = counts = measure(backend, options.kills, options.seed)
        print(
            f"{backend:<11}{counts['kills']:>7}{counts['in_a_write']:>12}"
            f"{counts['amid_an_epoch']:>15}{counts['steps']:>7}"
            f"{counts['largest_difference']:>20.1e}",
            flush=True,
        )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures))


def installed() -> list[str]:
    return [name for name in BACKENDS if importlib.util.find_spec(name)]


def measure(backend: str, kills: int, seed: int) -> dict[str, Any]:
    """Kills so many processes; counts what they did."""
    counts = dict.fromkeys(("kills", "in_a_write", "amid_an_epoch", "steps"), 0)
    moments = random.Random(seed)
    largest = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        longest = time_of_training(backend, folder / "whole") / 2
        (whole,) = lives(folder / "whole")
        run = 0
        while counts["kills"] < kills:
            killed = folder / f"killed-{run}"
            kill_until_done(backend, killed, kills, longest, moments, counts)
            found = lives(killed)
            largest = max(largest, largest_difference(found, whole))
            counts["amid_an_epoch"] += sum(min(life)[1] > 0 for life in found)
            counts["steps"] += sum(map(len, found))
            run += 1
    return counts | {"largest_difference": largest}


def time_of_training(backend: str, folder: pathlib.Path) -> float:
    """Runs without interruption; returns the seconds after the first step."""
    process = start(backend, folder)
    wait_for_a_step(process, folder)
    started = time.perf_counter()
    wait(process, folder)
    return time.perf_counter() - started


def kill_until_done(
    backend: str,
    folder: pathlib.Path,
    kills: int,
    longest: float,
    moments: random.Random,
    counts: dict[str, int],
) -> None:
    """Starts a run again and again until it ends by itself."""
    done = False
    while not done:
        process = start(backend, folder)
        if counts["kills"] < kills:
            wait_for_a_step(process, folder)
            time.sleep(moments.uniform(0, longest))
            if counts["kills"] % 2:
                wait_for_a_write(process, folder)
            process.send_signal(signal.SIGKILL)
        done = wait(process, folder)
        counts["kills"] += not done
        counts["in_a_write"] += any(folder.glob("*/.unfinished-*")) and not done


def start(backend: str, folder: pathlib.Path) -> subprocess.Popen:
    """Starts a process that trains, or goes on with it."""
    folder.mkdir(exist_ok=True)
    with open(folder / "errors", "w") as errors:
        return subprocess.Popen(
            [sys.executable, __file__, "--train", str(folder)],
            # More threads than one only wait for each other in so small a model.
            env={"OMP_NUM_THREADS": "1", **os.environ, "KERAS_BACKEND": backend},
            stderr=errors,
        )


def wait(process: subprocess.Popen, folder: pathlib.Path) -> bool:
    """Waits for a process; tells whether it ended by itself."""
    code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError((folder / "errors").read_text())
    return code == 0


def wait_for_a_step(process: subprocess.Popen, folder: pathlib.Path) -> None:
    """Waits until a process has made a step since it began."""
    before = sum(path.stat().st_size > 0 for path in folder.glob("life-*"))
    while process.poll() is None:
        if sum(path.stat().st_size > 0 for path in folder.glob("life-*")) > before:
            return
        time.sleep(0.001)


def wait_for_a_write(process: subprocess.Popen, folder: pathlib.Path) -> None:
    """Waits until a process writes a checkpoint."""
    while process.poll() is None and not any(folder.glob("*/.unfinished-*")):
        pass


def lives(folder: pathlib.Path) -> list[Losses]:
    """The losses of each process of a run that made a step."""
    texts = [path.read_text() for path in sorted(folder.glob("life-*"))]
    rows = [map(json.loads, text.splitlines()) for text in texts if text]
    return [{(epoch, batch): loss for epoch, batch, loss in life} for life in rows]


def largest_difference(found: list[Losses], whole: Losses) -> float:
    """Compares all lives of a run with the uninterrupted one."""
    if set().union(*found) != whole.keys():
        raise RuntimeError("The steps of the killed run are not those of a whole one.")
    return max(abs(whole[step] - life[step]) for life in found for step in life)


def train(folder: pathlib.Path) -> None:
    """The run that is killed."""
    import keras

    import keras_transformer as kt

    class Log(keras.callbacks.Callback):
        """Writes the loss of each step at once."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = self.epoch, batch + self.params.get("first_batch", 0)
            os.write(log, f"{json.dumps([*step, logs['loss']])}\n".encode())

    life = len(list(folder.glob("life-*")))
    log = os.open(folder / f"life-{life:04}", os.O_WRONLY | os.O_CREAT)
    resumed = any(folder.glob("run/*.npz"))
    keras.utils.set_random_seed(1000 + life if resumed else 7)
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
