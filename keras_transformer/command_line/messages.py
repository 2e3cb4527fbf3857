"""What the command says of errors, warnings and a stop."""

import ast
import functools
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

# `name` or `name=value`, as the library's messages have an argument.
_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]*))?`")

# What the library calls something else than a command does.
_OTHER_NAMES = {
    "num_hypotheses": "n_best",
    "target": "references",
    "tokenize": "bleu_tokenize",
    "filepath": "folder",
}


def stops_with_a_line(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command end with a line and exit code 130 when it is interrupted.

    Args:
        command: what Typer calls. The line is the message of its `KeyboardInterrupt`,
            or "stopped".

    Returns:
        A function with the same parameters.
    """

    @functools.wraps(command)
    def stoppable(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt as stop:
            typer.echo(f"{stop}" or "stopped", err=True)
            raise typer.Exit(130) from None

    return stoppable


@contextmanager
def warnings_as_lines(say: Callable[[str, str], None]) -> Iterator[None]:
    """Has warnings printed without the place in the code that they are from.

    Args:
        say: function that prints a line of a kind, here of `"warning"`.
    """

    def show(message: Warning | str, *place: Any, **options: Any) -> None:
        say("warning", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def in_options(text: str, parameters: list[Any]) -> str:
    """Names what was typed where a message names an argument of the library.

    Args:
        text: the message.
        parameters: Typer's, of the command.

    Returns:
        The message, with the command's options in the place of its arguments.

    Example:

    >>> from keras_transformer.command_line import app
    >>> translate = typer.main.get_command(app).commands["translate"]
    >>> message = "`num_beams` must be ...; received `num_beams=0`."
    >>> in_options(message, translate.params)
    '`--num-beams` must be ...; received `--num-beams 0`.'
    """
    known = {parameter.name: parameter for parameter in parameters}

    def typed(match: re.Match) -> str:
        name, value = match.groups()
        parameter = known.get(name) or known.get(_OTHER_NAMES.get(name, ""))
        return match[0] if parameter is None else _typed(parameter, value)

    return _ARGUMENT.sub(typed, text)


def _typed(parameter: Any, value: str | None) -> str:
    """What is typed on the command line to give a parameter a value."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper() if value is None else _words(value)}`"
    option = max(parameter.opts, key=len)
    if value is None or value == "True":
        return f"`{option}`"
    if value in ("False", "None"):
        return f"no `{option}`"
    return f"`{option} {_words(value)}`"


def _words(value: str) -> str:
    if not value.startswith(("'", '"', "[", "(")):
        return value
    try:
        values = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    values = values if isinstance(values, list | tuple) else [values]
    return shlex.join(map(str, values))
