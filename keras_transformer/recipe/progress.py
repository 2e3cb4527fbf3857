"""The output of a run: phases, the chosen options, and progress by epoch."""

import contextlib
import csv
import io
import math
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import keras
import numpy as np
from keras import ops
from tqdm import tqdm

from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.optimizers import describe_weight_decay
from keras_transformer.recipe.plan import Choice, Plan
from keras_transformer.recipe.task import Task
from keras_transformer_runtime.files import written_whole

WIDTH = 80  # columns
# Part of the speed of large matrix products that training reaches.
EFFICIENCY = 0.4

Row: TypeAlias = dict[str, str | float]


class Reporter:
    """Prints the progress of a run to standard output."""

    def __init__(self, verbose: int | None) -> None:
        if verbose is None:
            verbose = 1 if sys.stderr.isatty() else 2
        self.verbose = verbose

    def print(self, text: str) -> None:
        """Prints a line."""
        if self.verbose:
            print(text, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Prints the name of a phase when it begins, and its duration at its end."""
        if not self.verbose:
            yield
            return
        began = time.monotonic()
        print(name, end="", flush=True)
        try:
            yield
        except BaseException:
            print(flush=True)
            raise
        print(f"  {format_seconds(time.monotonic() - began)}", flush=True)

    def show_plan(self, plan: Plan, task: Task, model: GenerativeModel) -> None:
        """Prints the chosen options, the data, the model and the expected time."""
        if not self.verbose:
            return
        if plan.choices:
            print("Chosen from the text (each option can be set):")
            print(*map(_choice_line, plan.choices), sep="\n")
        train, valid = task.describe_data()
        facts = {"Training text": train, "Validation text": valid}
        facts["Model"] = f"{model.count_params():,} parameters"
        if plan["weight_decay"]:
            facts["Weight decay"] = describe_weight_decay(model)
        config = model.get_config()
        if "add_start_token" in config:
            place = "begin" if config["add_start_token"] else "can begin anywhere in"
            facts["Prompts"] = f"{place} a text"
        for name, fact in facts.items():
            print(f"{name:16} {fact}", flush=True)
        epochs = plan["epochs"]
        seconds = expected_seconds(model, task.padded_tokens()) * epochs
        print(
            f"{'Expected time':16} about {format_seconds(seconds)} for {epochs} epochs",
            flush=True,
        )


def _choice_line(choice: Choice) -> str:
    name = choice.option.replace("_", "-")
    option = f"--{name} {choice.value}"
    return f"  {option:32} {choice.reason}"[:WIDTH]


def expected_seconds(model: GenerativeModel, tokens: float) -> float:
    """Estimates the duration of an epoch from the speed of matrix products.

    Each weight of the built model is used for a number of tokens. Compilation and
    validation are not included.
    """
    embeddings = sum(
        math.prod(weight.shape)
        for weight in model.trainable_weights
        if weight.path.endswith("embeddings")
    )
    # A product of an input and a weight is computed once forward and twice backward.
    products = 3 * (model.count_params() - embeddings + embeddings / 2)
    return 2 * products * tokens / (EFFICIENCY * _operations_per_second())


def _operations_per_second() -> float:
    """Measures the speed of matrix products, in floating-point operations."""
    size = 512
    x = ops.convert_to_tensor(np.ones((size, size), "float32"))
    durations = []
    for _ in range(5):
        began = time.perf_counter()
        ops.convert_to_numpy(ops.matmul(x, x)[:1, :1])
        durations.append(time.perf_counter() - began)
    return 2 * size**3 / min(durations)


class EpochReport(keras.callbacks.Callback):
    """Prints a line for each epoch and, in a terminal, a progress bar."""

    def __init__(self, reporter: Reporter, metrics: Sequence[str]) -> None:
        super().__init__()
        self._reporter = reporter
        self._metrics = metrics
        self._bar = tqdm(disable=True)

    def on_epoch_begin(
        self, epoch: int, logs: Mapping[str, float] | None = None
    ) -> None:
        self._began = time.monotonic()
        first = self.params.get("first_batch", 0)
        steps = self.params["steps"]
        self._bar = tqdm(
            total=None if steps is None else steps + first,
            initial=first,
            file=sys.stderr,
            disable=self._reporter.verbose != 1,
            leave=False,
            ncols=WIDTH - 1,
            mininterval=0.5,
            bar_format="{desc} {percentage:3.0f}% |{bar}|{postfix}",
            desc=f"Epoch {epoch + 1}/{self.params['epochs']}",
        )

    def on_train_batch_end(
        self, batch: int, logs: Mapping[str, float] | None = None
    ) -> None:
        if self._bar.update() and logs:  # at most every half second
            self._bar.set_postfix_str(_progress(logs), refresh=False)

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self._bar.set_postfix_str(" validation")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._bar.close()
        logs = logs or {}
        names = {"loss": "loss", "val_loss": "valid loss"}
        names |= {
            name: name.removeprefix("val_").replace("_", " ") for name in self._metrics
        }
        parts = [
            f"{label} {logs[name]:.4g}"
            for name, label in names.items()
            if not math.isnan(logs.get(name, math.nan))
        ]
        parts.append(format_seconds(time.monotonic() - self._began))
        if left := logs.get("minutes_left"):
            parts.append(f"{format_seconds(60 * left)} left")
        head = f"Epoch {epoch + 1}/{self.params['epochs']}"
        self._reporter.print(f"{head}  {', '.join(parts)}")

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        self._bar.close()


class HistoryFile(keras.callbacks.Callback):
    """Writes the logs of each epoch as a row of a CSV file.

    The column `epoch` counts from 1. A cell is empty if the epoch has no such log or
    if the log is NaN, such as BLEU between two evaluations. A resumed run replaces the
    rows of the epochs that it repeats. The file is replaced as a whole, so that a
    killed run leaves the rows of all complete epochs. If the file cannot be read or
    written, a warning is given and training continues.

    Differs from `keras.callbacks.CSVLogger`, which fixes the columns in the first
    epoch and appends the rows of repeated epochs.
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__()
        self.path = pathlib.Path(path)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        number = epoch + 1
        try:
            self._write(number, logs or {})
        except (OSError, KeyError, ValueError) as error:
            warnings.warn(
                f"Epoch {number} is missing in {self.path}: {error!r}. Training "
                "continues.",
                stacklevel=2,
            )

    def _write(self, epoch: int, logs: Mapping[str, float]) -> None:
        rows = [row for row in self._read() if int(row["epoch"]) < epoch]
        values = {name: value for name, value in logs.items() if not math.isnan(value)}
        rows.append({"epoch": epoch, **values})
        columns = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        with written_whole(self.path) as file:
            file.write(text.getvalue().encode())

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return [{**row} for row in csv.DictReader(file)]


def _progress(logs: Mapping[str, float]) -> str:
    parts = [f"loss {logs['loss']:.3f}"]
    if "tokens_per_second" in logs:
        parts.append(f"{logs['tokens_per_second']:,.0f} tokens/s")
    if "minutes_left" in logs:
        parts.append(f"{format_seconds(60 * logs['minutes_left'])} left")
    return " " + ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """Returns a readable duration, such as `"8 s"`, `"3 min"` or `"2 h 5 min"`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
