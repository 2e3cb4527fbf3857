"""Files that are written part by part, and resumed after a stop."""

import dataclasses
import gzip
import mmap
import os
import pathlib
import stat
import zlib
from types import TracebackType
from typing import IO, BinaryIO, Self, cast

from keras_transformer_runtime.files import lock, read_json, write_json


@dataclasses.dataclass(frozen=True)
class FileProgress:
    """The finished part of a file, and the settings that its content depends on."""

    settings: dict[str, str]
    lines: int = 0  # of the source
    size: int = 0  # bytes written
    left_empty: int = 0  # lines that were too long
    truncated: int = 0  # translations that reached the maximum length


def record_path(target: pathlib.Path) -> pathlib.Path:
    """Returns the path of the file that records the progress of another one."""
    return target.with_name(f"{target.name}.unfinished.json")


class UnfinishedFile:
    """A file that is written part by part, and resumed after a stop.

    It is a context manager, which renames the file to `target` at the end unless there
    is an error. The file gets the permissions of an existing `target`. If it is
    `numbered`, a line begins with the number of its line of the source, from 0, and a
    space; otherwise there is one line for each.
    """

    def __init__(
        self,
        target: pathlib.Path,
        settings: dict[str, str],
        overwrite: bool,
        numbered: bool = False,
    ):
        self._target = target
        self._path = target.with_name(f"{target.name}.unfinished")
        self._record = record_path(target)
        self._settings = settings
        self._overwrite = overwrite
        self._numbered = numbered

    def _find_progress(self) -> FileProgress | None:
        """Returns the progress of an earlier run with the same settings."""
        settings, overwrite = self._settings, self._overwrite
        if not (os.path.lexists(self._record) and self._path.stat().st_size):
            return None
        progress = self._read_progress()
        if progress is None:
            self._check_may_be_discarded()
            return None
        for name in {**settings, **progress.settings}:
            value = settings.get(name)
            other = progress.settings.get(name)
            if other != value and not overwrite:
                raise ValueError(
                    f"`{name}` must be that of the unfinished work in `{self._path}`, "
                    f"`{name}={other}`; received `{name}={value}`. Resume with the "
                    "same arguments, or start again with `overwrite=True`."
                )
        if progress.settings != settings:
            return None
        if self._count_lines(progress.size) != progress.lines:
            self._check_may_be_discarded()
            return None
        return progress

    def _check_may_be_discarded(self) -> None:
        """Raises an error, unless damaged unfinished work is to be discarded."""
        if not self._overwrite:
            raise ValueError(
                f"`{self._path}` must agree with `{self._record}` to resume the "
                "unfinished work; one of them is damaged. Start again with "
                "`overwrite=True`."
            )

    def _read_progress(self) -> FileProgress | None:
        """Returns the recorded progress; `None` if it is damaged."""
        try:
            progress = FileProgress(**read_json(self._record))
        except (OSError, ValueError, TypeError):
            return None
        sizes = progress.lines, progress.size, progress.left_empty, progress.truncated
        is_valid = (
            isinstance(progress.settings, dict)
            and all(isinstance(v, str) for v in progress.settings.values())
            and all(type(size) is int for size in sizes)
            and 0 <= progress.left_empty <= progress.lines
            and 0 <= progress.truncated <= progress.lines
            and 0 <= progress.size <= self._path.stat().st_size
        )
        return progress if is_valid else None

    def _count_lines(self, size: int) -> int | None:
        """Returns the number of lines of the source in the first bytes of the file.

        It is `None` if the bytes are not whole lines.
        """
        if not size:
            return 0
        count, last = 0, b""
        with (
            open(self._path, "rb") as file,
            mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as part,
        ):
            lines = cast(IO[bytes], part)
            if self._target.suffix == ".gz":
                lines = cast(IO[bytes], gzip.GzipFile(fileobj=lines))
            try:
                for line in iter(lines.readline, b""):
                    count, last = count + 1, line
            except (OSError, EOFError, zlib.error):  # The compressed file is damaged.
                return None
        if not last.endswith(b"\n"):
            return None
        if not self._numbered:
            return count
        number = last.partition(b" ")[0]
        return int(number) + 1 if number.isdigit() and len(number) < 20 else None

    def _open(self) -> BinaryIO:
        """Opens the file, which must not be a link or a pipe."""
        if os.path.lexists(self._path) and not stat.S_ISREG(
            os.lstat(self._path).st_mode
        ):
            raise ValueError(
                f"`{self._path}` must be a file, for the unfinished work; it is a "
                "link, a folder, a pipe or a device. Remove it."
            )
        try:
            mode = stat.S_IMODE(self._target.stat().st_mode) & 0o666 | 0o200
        except FileNotFoundError:
            mode = 0o666
        no_link = getattr(os, "O_NOFOLLOW", 0)  # which Windows does not have

        def create(name: str, flags: int) -> int:
            return os.open(name, flags | no_link, mode)

        return open(self._path, "ab", opener=create)

    def __enter__(self) -> Self:
        self._file = self._open()
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

    def append(self, text: str, lines: int, left_empty: int, truncated: int) -> None:
        """Appends a part and records the progress."""
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
            truncated=done.truncated + truncated,
        )
        write_json(self._record, dataclasses.asdict(self.progress), follow_links=False)

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
