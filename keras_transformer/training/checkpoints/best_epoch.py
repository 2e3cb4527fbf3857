"""The epoch with the best value of a log."""

import math
import pathlib
from typing import Literal, TypeAlias

from keras_transformer.training.checkpoints import run_state, storage
from keras_transformer.types import Logs
from keras_transformer_runtime.arguments import check_one_of

Mode: TypeAlias = Literal["auto", "min", "max"]

# Ends of the names of losses, metrics of Keras and `evaluation.METRICS`.
_LOWER_IS_BETTER = ("loss", "perplexity", "error", "error_rate")
_HIGHER_IS_BETTER = ("accuracy", "bleu", "chrf", "exact_match")


class BestEpoch:
    """Compares the logs of each epoch with those of the best epoch so far."""

    def __init__(self, monitor: str, mode: Mode = "auto") -> None:
        self.monitor = monitor
        self._sign = _sign(monitor, mode)
        self._best: float | None = None

    def read(self, folder: pathlib.Path) -> None:
        """Continues with the best epoch of a run that is resumed."""
        path = folder / storage.BEST
        paths = [path] if path.exists() else []
        for _, state in run_state.readable_logs(paths):
            self.set(state["logs"])

    def is_better(self, logs: Logs) -> bool:
        """Returns whether an epoch is better than the best so far; NaN is not."""
        value = self._value(logs)
        return value is not None and (self._best is None or value > self._best)

    def set(self, logs: Logs) -> None:
        """Makes an epoch the best so far."""
        self._best = self._value(logs)

    def _value(self, logs: Logs) -> float | None:
        """Returns a number that is greater for better epochs."""
        value = logs.get(self.monitor, math.nan)
        return None if math.isnan(value) else self._sign * value


def _sign(monitor: object, mode: Mode) -> int:
    """Returns 1 if a greater value is better, -1 otherwise."""
    check_one_of(("auto", "min", "max"), mode=mode)
    if not isinstance(monitor, str):
        raise ValueError(
            f"`monitor` must be the name of a log; received `monitor={monitor!r}`."
        )
    if mode == "max" or (mode == "auto" and monitor.endswith(_HIGHER_IS_BETTER)):
        return 1
    if mode == "min" or monitor.endswith(_LOWER_IS_BETTER):
        return -1
    raise ValueError(
        "`mode` must be 'min' or 'max' for a log whose name does not determine it; "
        f"received `mode='auto'` and `monitor={monitor!r}`."
    )
