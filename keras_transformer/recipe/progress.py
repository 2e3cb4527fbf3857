"""The output of a run: phases, the chosen options, and progress by epoch."""

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from tqdm import tqdm

from keras_transformer.dataset import ParallelDataset, TextDataset
from keras_transformer.models import CausalLM, GenerativeModel
from keras_transformer.recipe.plan import Choice, Plan

WIDTH = 80  # columns
# Part of the speed of large matrix products that training reaches.
EFFICIENCY = 0.4


class Reporter:
    """Prints the progress of a run to standard output.

    Args:
        verbose: int, `verbose` of the recipe; 0 prints nothing.
    """

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
        """Prints the name of a phase when it begins, and its duration at its end.

        Args:
            name: the name, such as `"Reading the text"`.
        """
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

    def show_plan(
        self,
        plan: Plan,
        model: GenerativeModel,
        train_data: ParallelDataset | TextDataset,
        valid_data: ParallelDataset | TextDataset,
    ) -> None:
        """Prints the chosen options, the data, the model and the expected time."""
        if not self.verbose:
            return
        if plan.choices:
            print("Chosen from the text (each option can be set):")
            print(*map(_choice_line, plan.choices), sep="\n")
        for name, data in {"Training": train_data, "Validation": valid_data}.items():
            print(f"{name + ' text':16} {_describe(data)}")
        print(f"{'Model':16} {model.count_params():,} parameters", flush=True)
        if isinstance(model, CausalLM):
            place = "begin" if model.add_start_token else "can begin anywhere in"
            print(f"{'Prompts':16} {place} a text", flush=True)
        seconds = expected_seconds(model, train_data) * plan["epochs"]
        print(
            f"{'Expected time':16} about {format_seconds(seconds)} for "
            f"{plan['epochs']} epochs",
            flush=True,
        )


def _choice_line(choice: Choice) -> str:
    name = choice.option.replace("_", "-")
    option = f"--{name} {choice.value}"
    return f"  {option:32} {choice.reason}"[:WIDTH]


def _describe(data: ParallelDataset | TextDataset) -> str:
    if isinstance(data, TextDataset):
        documents = "document" if data.num_documents == 1 else "documents"
        return (
            f"{data.num_tokens:,} tokens of {data.num_documents:,} {documents} in "
            f"{data.batches_per_epoch:,} batches"
        )
    dropped = {
        "empty": "empty",
        "max_source_length": "too long",
        "max_target_length": "too long",
        "duplicate": "repeated",
        "max_length_ratio": "of unequal length",
    }
    counts: dict[str, int] = {}
    for reason, count in data.dropped.items():
        counts[dropped[reason]] = counts.get(dropped[reason], 0) + count
    parts = [f"{data.pairs_kept:,} pairs in {data.batches_per_epoch:,} batches"]
    parts += [
        f"{count:,} {name} are left out" for name, count in counts.items() if count
    ]
    return ", ".join(parts)


def expected_seconds(
    model: GenerativeModel, data: ParallelDataset | TextDataset
) -> float:
    """Estimates the duration of an epoch from the speed of matrix products.

    Args:
        model: the built model.
        data: the training data.

    Returns:
        Seconds, without compilation and validation.
    """
    if isinstance(data, TextDataset):
        tokens: float = data.batches_per_epoch * math.prod(data.batch_shape)
    else:
        tokens = sum(
            shape.batches * shape.rows * (shape.source_length + shape.target_length)
            for shape in data.shapes
        )
        if not isinstance(model, CausalLM):  # each weight is used for one side
            tokens /= 2
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
    """Prints a line for each epoch and, in a terminal, a progress bar.

    Args:
        reporter: prints the lines; with its `verbose=1` there is a progress bar on
            standard error.
        metrics: names of logs to print besides the losses, such as `"val_bleu"`.
    """

    def __init__(self, reporter: Reporter, metrics: Sequence[str]) -> None:
        super().__init__()
        self._reporter = reporter
        self._metrics = metrics
        self._bar: Any = None

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
        if self._bar is not None:
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
        if self._bar is not None:
            self._bar.close()


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
