"""The epoch with the best value of a log."""

import math
import pathlib
from typing import Any, Literal, TypeAlias

from keras_transformer.training.checkpoints import run_state, storage

Mode: TypeAlias = Literal["auto", "min", "max"]

# Ends of the names of losses, metrics of Keras and `evaluation.METRICS`.
_LOWER_IS_BETTER = ("loss", "perplexity", "error", "error_rate")
_HIGHER_IS_BETTER = ("accuracy", "bleu", "chrf", "exact_match")


class BestEpoch:
    """Compares the logs of each epoch with those of the best epoch so far.

    Args:
        monitor: str, name of the log.
        mode: `"min"`, `"max"` or `"auto"`, which depends on the end of the name.

    Raises:
        ValueError: if `mode` has another value, or is `"auto"` for an unknown name.
    """

    def __init__(self, monitor: str, mode: Mode = "auto") -> None:
        self.monitor = monitor
        self._sign = _sign(monitor, mode)
        self._best: float | None = None

    def read(self, folder: pathlib.Path) -> None:
        """Continues with the best epoch of a run that is resumed.

        Args:
            folder: path of the folder with the checkpoints.
        """
        path = folder / storage.BEST
        paths = [path] if path.exists() else []
        for _, state in storage.readable_checkpoints(
            paths, "epoch", "batch", "logs", check=run_state.check_logs
        ):
            self.set(state["logs"])

    def is_better(self, logs: dict[str, float]) -> bool:
        """Returns whether an epoch is better than the best so far; NaN is not.

        Args:
            logs: the logs of the epoch.
        """
        value = self._value(logs)
        return value is not None and (self._best is None or value > self._best)

    def set(self, logs: dict[str, float]) -> None:
        """Makes an epoch the best so far.

        Args:
            logs: the logs of the epoch.
        """
        self._best = self._value(logs)

    def _value(self, logs: dict[str, float]) -> float | None:
        """Returns a number that is greater for better epochs."""
        value = logs.get(self.monitor, math.nan)
        return None if math.isnan(value) else self._sign * value


def _sign(monitor: Any, mode: Any) -> int:
    """Returns 1 if a greater value is better, -1 otherwise."""
    if mode not in ("auto", "min", "max"):
        raise ValueError(
            f"`mode` must be 'auto', 'min' or 'max'; received `mode={mode!r}`."
        )
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
