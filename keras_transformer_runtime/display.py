"""The progress of long tasks: a line with motion in a terminal, or plain lines."""

import contextlib
import io
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

LEAST_BAR, MOST_BAR = 6, 24  # columns
NOTEBOOK_COLUMNS, NOTEBOOK_SECONDS = 80, 0.5  # width of a line, and time between two


def has_motion() -> bool:
    """Returns whether standard error is a terminal or a notebook."""
    console = Console(stderr=True)
    return console.is_jupyter or console.is_terminal


class Stage:
    """A part of a task.

    Attributes:
        name: str, shown first.
        total: int, number of steps, or `None` if it is unknown.
        done: int, number of completed steps.
        details: list of str, the most important first. Those that fit are shown. If
            there are none, they are the time left and the speed in `unit`, such as
            `"sentences"`, or the time so far.
    """

    def __init__(
        self, name: str, total: int | None = None, done: int = 0, unit: str = ""
    ) -> None:
        self._spinner = Spinner("dots")
        self._unit = unit
        self.begin(name, total, done)

    def begin(self, name: str, total: int | None = None, done: int = 0) -> None:
        """Makes this the next stage."""
        self.name, self.total, self.done = name, total, done
        self.details: Sequence[str] = ()
        self._began, self._first = time.monotonic(), done

    @property
    def seconds(self) -> float:
        """The time since the stage began."""
        return time.monotonic() - self._began

    def line(self, columns: int) -> Table:
        """Returns the line with motion."""
        details = [*self.details] or self._own_details()
        words = [self.name]
        if self.total:
            words.append(f"{min(100, 100 * self.done // self.total):2d} %")
        for detail in details:
            if len("  ".join([*words, detail])) + 2 <= columns:
                words.append(detail)
        text = Text("  ".join(words), no_wrap=True, overflow="ellipsis")
        text.stylize("bold", 0, len(self.name))
        cells: list[RenderableType] = [self._spinner, text]
        room = columns - text.cell_len - 4
        if self.total and room >= LEAST_BAR:
            width = min(room, MOST_BAR)
            cells.append(ProgressBar(self.total, self.done, width=width))
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(*cells)
        return row

    def _own_details(self) -> list[str]:
        seconds = self.seconds
        if not self._unit or self.done == self._first:
            return [format_seconds(seconds)]
        speed = (self.done - self._first) / seconds
        details = [f"{self.done:,} {self._unit}", f"{speed:,.0f}/s"]
        if self.total:
            left = (self.total - self.done) / speed
            details.insert(0, f"{format_seconds(left)} left")
        return details


class NotebookLine:
    """A line of the output of a notebook cell.

    Rich requires ipywidgets, and leaves an empty output behind for each line.
    """

    def __init__(self) -> None:
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def write(self, text: str) -> None:
        """Replaces the text of the line."""
        self._handle.update({"text/plain": text}, raw=True)

    @contextlib.contextmanager
    def motion(self, stage: Stage) -> Iterator[None]:
        """Shows a stage until the block ends, and an empty line afterwards."""
        ended = threading.Event()

        def refresh() -> None:
            while not ended.wait(NOTEBOOK_SECONDS):
                self.write(_plain(stage))

        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.write("")


def _plain(stage: Stage) -> str:
    """Returns the line with motion without colours."""
    file = io.StringIO()
    console = Console(
        file=file, width=NOTEBOOK_COLUMNS, force_terminal=False, force_jupyter=False
    )
    console.print(stage.line(NOTEBOOK_COLUMNS))
    return file.getvalue().rstrip()


class Display:
    """Shows the stages of a task, one after the other.

    In a terminal or a notebook, one line with motion shows the current stage. In a
    terminal, what is printed appears above it. In a notebook, the next text of `print`
    replaces it. Elsewhere a stage is one plain line.

    Args:
        verbose: int, 0: silent; 1: a line with motion; 2: plain lines. `None` = 1 in
            a terminal or a notebook, else 2.
    """

    def __init__(self, verbose: int | None = None) -> None:
        if verbose is None:
            verbose = 1 if has_motion() else 2
        self.verbose = verbose
        self._is_within_line = False
        self._notebook_line: NotebookLine | None = None  # That of the last motion.

    def print(self, text: str) -> None:
        """Prints a text: in a terminal without split words, or in a notebook."""
        if self._notebook_line is not None:
            self._notebook_line.write(text)
            self._notebook_line = None
        elif self.verbose:
            self._end_line()
            if self.verbose == 1:
                columns = shutil.get_terminal_size().columns
                lines = (_wrapped(line, columns) for line in text.split("\n"))
                text = "\n".join(lines)
            print(text, flush=True)

    def _end_line(self, end: str = "") -> None:
        """Ends a plain line that has begun."""
        if self._is_within_line:
            print(end, flush=True)
            self._is_within_line = False

    @contextlib.contextmanager
    def motion(self, stage: Stage) -> Iterator[Stage]:
        """Shows a stage until the block ends, and nothing of it afterwards."""
        if self.verbose != 1:
            yield stage
            return
        console = Console(stderr=True)
        if console.is_jupyter:
            self._notebook_line = self._notebook_line or NotebookLine()
            with self._notebook_line.motion(stage):
                yield stage
            return
        with Live(
            console=console,
            get_renderable=lambda: stage.line(console.width - 1),
            refresh_per_second=5,
            transient=True,
            # What is printed to a file must not be sent to the terminal.
            redirect_stdout=sys.stdout.isatty(),
        ):
            yield stage

    @contextlib.contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Shows a stage with motion until the block ends, then its duration."""
        stage = Stage(name, total)
        if self.verbose == 2:
            print(name, end="", flush=True)
            self._is_within_line = True
        try:
            with self.motion(stage):
                yield stage
        except BaseException:
            self._end_line()
            raise
        duration = format_seconds(stage.seconds)
        if self._is_within_line:
            self._end_line(f"  {duration}")
        else:
            self.print(f"{name}  {duration}")


def _wrapped(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    return textwrap.fill(
        line,
        columns,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


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
