"""Files that are written part by part, and resumed after a stop."""

import dataclasses
import gzip
import os
import pathlib
from types import TracebackType
from typing import Self

from keras_transformer.files import lock, read_json, write_json


@dataclasses.dataclass(frozen=True)
class FileProgress:
    """The finished part of a file, and the settings that its content depends on.

    Attributes:
        settings: dictionary of str.
        lines: int, number of finished lines of the source.
        size: int, number of bytes written.
        left_empty: int, number of lines that were too long.
    """

    settings: dict[str, str]
    lines: int = 0
    size: int = 0
    left_empty: int = 0


def record_path(target: pathlib.Path) -> pathlib.Path:
    """Returns the path of the file that records the progress on another file.

    Args:
        target: path of the other file.

    Returns:
        The path; the file exists from the first finished part to the last.
    """
    return target.with_name(f"{target.name}.unfinished.json")


class UnfinishedFile:
    """A file that is written part by part, and resumed after a stop.

    It is a context manager, which renames the file to `target` at the end unless there
    is an error.

    Args:
        target: path of the complete file.
        settings: dictionary of str, the settings that its content depends on.
        overwrite: whether to discard unfinished work with other settings.

    Attributes:
        progress: the `FileProgress`, with that of earlier runs.

    Raises:
        ValueError: on entry, if another process writes the file, or there is
            unfinished work that is damaged or has other settings.
    """

    def __init__(self, target: pathlib.Path, settings: dict[str, str], overwrite: bool):
        self._target = target
        self._path = target.with_name(f"{target.name}.unfinished")
        self._record = record_path(target)
        self._settings = settings
        self._overwrite = overwrite

    def _find_progress(self) -> FileProgress | None:
        """Returns the progress of an earlier run with the same settings."""
        settings, overwrite = self._settings, self._overwrite
        if not (self._record.exists() and self._path.stat().st_size):
            return None
        try:
            progress = FileProgress(**read_json(self._record))
            whole = self._path.stat().st_size >= progress.size
        except (ValueError, TypeError):
            whole = False
        if not whole:
            if overwrite:
                return None
            raise ValueError(
                f"`{self._path}` must agree with `{self._record}` to resume the "
                "unfinished work; one of them is damaged. Start again with "
                "`overwrite=True`."
            )
        for name, value in settings.items():
            other = _renamed(progress.settings.get(name))
            if other != value and not overwrite:
                raise ValueError(
                    f"`{name}` must be that of the unfinished work in `{self._path}`, "
                    f"`{name}={other}`; received `{name}={value}`. Resume with the "
                    "same arguments, or start again with `overwrite=True`."
                )
        same = {name: _renamed(v) for name, v in progress.settings.items()} == settings
        return progress if same else None

    def __enter__(self) -> Self:
        self._file = open(self._path, "ab")
        try:
            if not lock(self._file):
                raise ValueError(
                    "`target` must not be written by another process; received "
                    f"`target={str(self._target)!r}`, which another process writes."
                )
            self.progress = self._find_progress() or FileProgress(self._settings)
        except ValueError:
            self._file.close()
            raise
        if not self.progress.lines:
            self._record.unlink(missing_ok=True)
        self._file.truncate(self.progress.size)
        return self

    def append(self, text: str, lines: int, left_empty: int) -> None:
        """Appends a part and records the progress.

        Args:
            text: str, the part.
            lines: int, number of lines of the source that it contains.
            left_empty: int, number of these lines that were too long.
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

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None:
            os.replace(self._path, self._target)
            self._record.unlink()
        elif not self.progress.lines:
            self._path.unlink()


def _renamed(setting: str | None) -> str | None:
    """Renames arguments in the `repr` of a search that version 0.1.0 recorded."""
    return setting and setting.replace(" processors=", " logits_processors=")
