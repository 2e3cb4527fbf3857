"""A file that is made part by part, in several runs if need be."""

import dataclasses
import gzip
import os
import pathlib
import re
from typing import Any, Self

from keras_transformer.files import lock, read_json, write_json


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the work on a file has come, and what it depends on."""

    settings: dict[str, str]
    lines: int = 0
    size: int = 0  # bytes written
    left_empty: int = 0  # lines that were too long


def record_path(target: pathlib.Path) -> pathlib.Path:
    """The file that says how far the work on another has come.

    Args:
        target: the file that is made.

    Returns:
        Its path; it exists once a part is finished, until all are.
    """
    return target.with_name(f"{target.name}.unfinished.json")


def _read_progress(path: pathlib.Path) -> Progress:
    """Reads a record, with the present names of arguments in the settings."""
    progress = Progress(**read_json(path))
    settings = {
        name: re.sub(r"\bprocessors=", "logits_processors=", value)
        for name, value in progress.settings.items()
    }
    return dataclasses.replace(progress, settings=settings)


class UnfinishedFile:
    """A file that is made part by part, in several runs if need be.

    As a context manager it gives the file its name at the end, unless there was an
    error.

    Args:
        target: the file once it is whole.
        settings: what its content depends on.
        overwrite: whether to begin anew if there is work with other settings.

    Attributes:
        progress: the `Progress` so far, that of earlier runs included.

    Raises:
        ValueError: on entry, if another process is at work on the file, or there is
            unfinished work that is damaged or has other settings.
    """

    def __init__(self, target: pathlib.Path, settings: dict[str, str], overwrite: bool):
        self._target = target
        self._path = target.with_name(f"{target.name}.unfinished")
        self._record = record_path(target)
        self._settings = settings
        self._overwrite = overwrite

    def _found(self) -> Progress | None:
        """The progress of an earlier run, if it can be used."""
        settings, overwrite = self._settings, self._overwrite
        if not (self._record.exists() and self._path.stat().st_size):
            return None
        try:
            progress = _read_progress(self._record)
            whole = self._path.stat().st_size >= progress.size
        except (ValueError, TypeError, AttributeError):
            whole = False
        if not whole:
            if overwrite:
                return None
            raise ValueError(
                f"`{self._path}` must be as `{self._record}` says, to go on with this "
                "unfinished work; one of them is damaged. Begin anew with "
                "`overwrite=True`."
            )
        for name, value in settings.items():
            other = progress.settings.get(name)
            if other != value and not overwrite:
                raise ValueError(
                    f"`{name}` must be that of the unfinished work in `{self._path}`, "
                    f"`{name}={other}`; received `{name}={value}`. Go on with the same "
                    "arguments, or begin anew with `overwrite=True`."
                )
        return progress if progress.settings == settings else None

    def __enter__(self) -> Self:
        self._file = open(self._path, "ab")
        try:
            if not lock(self._file):
                raise ValueError(
                    "`target` must not be made by another process; received "
                    f"`target={str(self._target)!r}`, which one is at work on."
                )
            self.progress = self._found() or Progress(self._settings)
        except ValueError:
            self._file.close()
            raise
        if not self.progress.lines:
            self._record.unlink(missing_ok=True)
        self._file.truncate(self.progress.size)
        return self

    def append(self, text: str, lines: int, left_empty: int) -> None:
        """Adds a part, which stays, whatever happens afterwards.

        Args:
            text: what to write.
            lines: how many lines of the source it is from.
            left_empty: how many of these were too long.
        """
        data = text.encode()
        if self._target.suffix == ".gz":
            data = gzip.compress(data, mtime=0)
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        done = self.progress
        self.progress = dataclasses.replace(
            done,
            lines=done.lines + lines,
            size=self._file.tell(),
            left_empty=done.left_empty + left_empty,
        )
        write_json(self._record, dataclasses.asdict(self.progress))

    def __exit__(self, error_type: Any, error: Any, traceback: Any) -> None:
        self._file.close()
        if error is None:
            os.replace(self._path, self._target)
            self._record.unlink()
        elif not self.progress.lines:
            self._path.unlink()
