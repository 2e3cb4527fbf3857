"""Messages of the command: errors, warnings and interruptions."""

import ast
import functools
import re
import shlex
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, ParamSpec, Protocol, TextIO

import typer

P = ParamSpec("P")

# An argument in a message of the library: `name` or `name=value`.
_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]*))?`")

# The parameter of a command for an argument of the library with another name.
_OTHER_NAMES = {
    "target": "references",
    "tokenize": "bleu_tokenize",
    "filepath": "folder",
}


class Parameter(Protocol):
    """A parameter of a Typer command: an option or an argument."""

    @property
    def name(self) -> str | None: ...

    @property
    def opts(self) -> list[str]: ...

    @property
    def param_type_name(self) -> str: ...


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, which stops a command in the same way as Ctrl-C."""


def exits_on_interrupt(command: Callable[P, None]) -> Callable[P, None]:
    """Returns a command that Ctrl-C and SIGTERM end with one line.

    The exit code is 130 after Ctrl-C (SIGINT), and 143 after SIGTERM.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _raises_on_sigterm():
                command(*args, **kwargs)
        except KeyboardInterrupt as interrupt:
            is_sigterm = isinstance(interrupt, Terminated)
            number = signal.SIGTERM if is_sigterm else signal.SIGINT
            typer.echo(f"{interrupt}" or "Stopped.", err=True)
            raise typer.Exit(128 + number) from None

    return wrapped


@contextmanager
def _raises_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise `Terminated`, unless it is ignored or handled."""

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def prints_warnings(print_message: Callable[[str, str], None]) -> Iterator[None]:
    """Prints warnings without their place in the code."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        print_message("warning", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def print_message(context: typer.Context, text: str) -> None:
    """Prints a message of the library on standard error, while a command runs."""
    typer.echo(with_option_names(text, context.command.params), err=True)


def with_option_names(text: str, parameters: Sequence[Parameter]) -> str:
    """Replaces arguments of the library in a message by options of a command."""
    by_name = {parameter.name: parameter for parameter in parameters}

    def replacement(match: re.Match[str]) -> str:
        name, value = match.group(1), match.group(2)
        parameter = by_name.get(name) or by_name.get(_OTHER_NAMES.get(name, ""))
        return match.group() if parameter is None else _as_typed(parameter, value)

    return _ARGUMENT.sub(replacement, text)


def _as_typed(parameter: Parameter, value: str | None) -> str:
    """Returns a parameter and its value as they are typed on the command line."""
    if parameter.param_type_name == "argument":
        name = (parameter.name or "").upper()
        return f"`{name if value is None else _shell_words(value)}`"
    option = max(parameter.opts, key=len)
    if value is None or value == "True":
        return f"`{option}`"
    if value in ("False", "None"):
        return f"no `{option}`"
    return f"`{option} {_shell_words(value)}`"


def _shell_words(value: str) -> str:
    """Returns the `repr` of a string, list or tuple as words of a shell command."""
    if not value.startswith(("'", '"', "[", "(")):
        return value
    try:
        literal: object = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    words = literal if isinstance(literal, list | tuple) else [literal]
    return shlex.join(map(str, words))
