"""Signals that stop a run: SIGINT, which Ctrl-C sends, and SIGTERM."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Some programs send a signal to a process and again to its group: `timeout`, for one.
_SECONDS_OF_ONE_SIGNAL = 1.0

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class StopSignals:
    """Handlers of SIGINT and SIGTERM between `install` and `restore`.

    The first signal stops the run at once if `waits_for` is `None`, and otherwise in
    `stop_if_received`. A second SIGINT has the effect that it has without these
    handlers; a second SIGTERM has none.

    A signal that is ignored stays ignored. Outside the main thread, where Python cannot
    handle signals, nothing changes. A forked process has the handlers before.

    Attributes:
        received: number of the signal that has not yet stopped the run, or `None`.
        waits_for: what the stop waits for the end of: `"batch"`, `"epoch"` or
            `"checkpoint"`; `None` = the run can stop at once.
    """

    def __init__(self, finish: Callable[[], str], is_verbose: bool = False) -> None:
        self.received: int | None = None
        self.waits_for: str | None = None
        self._finish = finish
        self._is_verbose = is_verbose
        self._process = os.getpid()
        self._previous: dict[int, Handler] = {}

    def install(self) -> None:
        """Handles the signals until `restore`."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = signal.getsignal(number)
            if previous not in (signal.SIG_IGN, None):
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restores the handlers before `install`, unless others have replaced these."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous)

    def stop_if_received(self) -> None:
        """Ends the run as the received signal requests, unless it has to wait.

        Raises `KeyboardInterrupt` after SIGINT and `SystemExit` after SIGTERM, or calls
        the handler of the caller of `fit`. If that raises nothing, the run continues.
        """
        if self.received is None or self.waits_for is not None:
            return
        message = self._finish()
        # Another process may have received it.
        previous = self._previous.get(self.received)
        if previous is signal.default_int_handler:
            raise KeyboardInterrupt(message)
        if not callable(previous):
            print(message, file=sys.stderr)
            raise SystemExit(128 + self.received)
        previous(self.received, None)
        # If Python ignores an exception, as it does in a finalizer, the next call
        # raises it again.
        self.received = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._pass_on(number, frame)
        elif self.received is None:
            self.received, self._time = number, time.monotonic()
            if self.waits_for is None:
                self.stop_if_received()
            elif self._is_verbose:
                self._print_what_it_waits_for()
        elif (
            number == signal.SIGINT
            and time.monotonic() - self._time >= _SECONDS_OF_ONE_SIGNAL
        ):
            self._pass_on(number, frame)

    def _print_what_it_waits_for(self) -> None:
        # The signal may have interrupted another `print`.
        with contextlib.suppress(RuntimeError):
            print(
                f"\nStopping at the end of the {self.waits_for}. Press Ctrl-C again to "
                "stop at once.",
                file=sys.stderr,
            )

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Restores the previous handlers and gives the signal to them."""
        self.restore()
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
