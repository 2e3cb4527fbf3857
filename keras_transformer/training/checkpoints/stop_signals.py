"""Signals that stop a run: SIGINT, which Ctrl-C sends, and SIGTERM."""

import contextlib
import inspect
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

import keras

from keras_transformer.backend.keras_internals import is_called_by_fit

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Some programs send a signal to a process and again to its group: `timeout`, for one.
_SECONDS_OF_ONE_SIGNAL = 1.0

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


class StopSignals:
    """Handlers of SIGINT and SIGTERM while `fit` runs.

    The first signal stops the run at once if `waits_for` is `None`, and otherwise in
    `stop_if_received`. A second SIGINT has the effect that it has without these
    handlers; a second SIGTERM has none.

    A signal that is ignored stays ignored. Outside the main thread, where Python cannot
    handle signals, nothing changes. A callback is not informed if `fit` ends with an
    exception. In this case, the handlers pass signals on until they are restored, which
    is at the latest when the list of callbacks is deleted.

    Args:
        finish: function that saves the state of the run and returns the message of the
            stop. It may be called while a step runs.
        callbacks: the list of callbacks of the running `fit`.

    Attributes:
        received: number of the signal that has not yet stopped the run, or `None`.
        waits_for: what the stop waits for the end of: `"batch"`, `"epoch"` or
            `"checkpoint"`; `None` = the run can stop at once.
    """

    def __init__(
        self, finish: Callable[[], str], callbacks: keras.callbacks.CallbackList
    ) -> None:
        self.received: int | None = None
        self.waits_for: str | None = None
        self._finish = finish
        self._is_verbose = bool(callbacks.params["verbose"])
        self._callbacks = weakref.ref(callbacks)
        self._process = os.getpid()
        self._has_ended = False
        self._previous: dict[int, Handler] = {}
        weakref.finalize(callbacks, self.restore).atexit = False

    def install(self) -> None:
        """Handles the signals until `restore`."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = _handler_in_use(number)
            if previous not in (signal.SIG_IGN, None):
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restores the handlers before `install`, unless others have replaced these."""
        self._has_ended = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, _handler_in_use(number))

    def stop_if_received(self) -> None:
        """Ends the run as the received signal requests, unless it has to wait.

        Raises:
            KeyboardInterrupt: after SIGINT, if Python handles it as by default.
            SystemExit: after SIGTERM, if it has the default effect. The exit code is
                128 plus the number of the signal.
            BaseException: by a handler of the caller of `fit`. If it raises nothing,
                the run continues.
        """
        if self.received is None or self.waits_for is not None:
            return
        message = self._finish()
        # Another process may have received it.
        previous = self._previous.get(self.received)
        try:
            if previous is signal.default_int_handler:
                raise KeyboardInterrupt(message)
            if not callable(previous):
                print(message, file=sys.stderr)
                raise SystemExit(128 + self.received)
            previous(self.received, inspect.currentframe())
        except BaseException:
            # Python ignores exceptions in some places, such as the callback of a weak
            # reference. The next call raises it again.
            self.restore()
            raise
        self.received = None

    def is_running(self, frame: FrameType | None) -> bool:
        """Returns whether a frame is within the `fit` of these handlers."""
        callbacks = self._callbacks()
        return (
            callbacks is not None
            and not self._has_ended
            and os.getpid() == self._process  # A forked process has the same frames.
            and is_called_by_fit(frame, callbacks)
        )

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.is_running(frame):
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


def _handler_in_use(number: int) -> Handler:
    """Returns the handler of a signal, without those of a `fit` that has ended."""
    handler = signal.getsignal(number)
    while isinstance(owner := getattr(handler, "__self__", None), StopSignals):
        if owner.is_running(inspect.currentframe()):
            break
        handler = owner._previous[number]
    return handler


@contextlib.contextmanager
def restored_signal_handlers() -> Iterator[None]:
    """Restores the handlers that `StopSignals` replaces, also after an exception."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                owner = getattr(signal.getsignal(number), "__self__", None)
                if isinstance(owner, StopSignals):
                    signal.signal(number, handler)
