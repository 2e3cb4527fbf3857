"""Translates whole text files in constant memory; a killed run goes on."""

import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Iterator
from numbers import Integral
from typing import Any, Self

import keras
import numpy as np
from tqdm.auto import tqdm

from keras_transformer.dataset.line_files import LineIndex, LineReader
from keras_transformer.decoding import BeamSearch, RelativeLength, Search
from keras_transformer.files import lock, written_whole
from keras_transformer.inference.generation import Request, check_request, check_seed

Hypotheses = list[tuple[str, float]]


def translate_file(
    model: Any,
    source: str | os.PathLike,
    target: str | os.PathLike,
    search: Search | None = None,
    *,
    max_length: int | RelativeLength | None = None,
    min_length: int | RelativeLength = 0,
    seed: int | None = None,
    batch_size: int = 64,
    window: int = 10_000,
    n_best: bool = False,
    too_long: str = "error",
    overwrite: bool = False,
    verbose: int = 1,
) -> None:
    """Translates a text file of any size, one text a line.

    Line n of `target` is the translation of line n of `source`; that of a line without
    words is empty. What would end a line within a translation becomes a space.

    The file is read in windows, whose lines are sorted by length and translated in
    batches: memory does not grow with the file. What is done is in
    `<target>.unfinished` until all of it is and takes the name `target`. After a run
    was killed, the same call goes on behind the last finished window; how far it was,
    and with which text, model and search, is in `<target>.unfinished.json`.

    Args:
        model: a `Seq2Seq` with tokenizers.
        source: path of the text, UTF-8, plain or gzip (`.gz`).
        target: path of the file to write; compressed if it ends in `.gz`.
        search: how to search; `BeamSearch()` if `None`. Unfinished work knows it by its
            `repr`.
        max_length: int or `RelativeLength`, greatest output length in tokens, the end
            token included; 50 more than the source's if `None`.
        min_length: int or `RelativeLength`, least output length likewise.
        seed: int of 32 bits, where `Sampling` starts; drawn at random if `None`.
        batch_size: int, texts decoded together.
        window: int, lines from one finished part to the next. More of them make
            batches of more equal lengths, and more to do again after a stop.
        n_best: whether to write every hypothesis of the search, best first, each on a
            line `line_number ||| text ||| score`, as Moses does: numbers count from 0.
        too_long: what becomes of lines of more than `max_source_length` tokens:
            `"error"`, before anything is translated, or `"empty"`, which leaves their
            translations empty and warns of their number at the end.
        overwrite: whether to replace `target` if it exists, and to give up unfinished
            work of a call with other arguments.
        verbose: 1 for a progress bar, 0 for none.

    Raises:
        ValueError: if an argument is out of range, the model has no tokenizers, the
            source is empty or has a line that is not UTF-8 or too long, or there is
            unfinished work of other text, model, search or options.
        FileExistsError: if `target` exists and may not be replaced.
        OSError: if a file cannot be read or written.

    Example:

    ```python
    translate_file(model, "news.en", "news.de", search=BeamSearch(num_beams=5))
    ```
    """
    search, target = search or BeamSearch(), pathlib.Path(target)
    check_request(Request(search, max_length, min_length), batch_size)
    check_seed(seed)
    _check_arguments(model, source, target, window, too_long, overwrite)
    text = _Source(source, model)
    options = {
        "search": search,
        "max_length": max_length,
        "min_length": min_length,
        "seed": seed,
    }
    settings = {name: repr(value) for name, value in options.items()} | {
        "source": text.digest(),
        "model": _model_digest(model),
        "n_best": repr(n_best),
    }
    options["batch_size"] = batch_size
    write = _n_best_lines if n_best else _best_line
    with _UnfinishedFile(target, settings, overwrite) as unfinished:
        done = unfinished.progress.lines
        if too_long == "error":
            text.refuse_long_lines(done, window)
        with tqdm(
            total=text.lines, initial=done, unit=" sentences", disable=not verbose
        ) as bar:
            for part in text.windows(done, window):
                translated = _translate(model, part, options, bar)
                written = map(write, range(part.start, text.lines), translated)
                unfinished.append(
                    "".join(written), len(part.lines), int(part.too_long.sum())
                )
    if left_empty := unfinished.progress.left_empty:
        warnings.warn(
            f"{left_empty} lines of `{source}` have more than "
            f"`max_source_length={text.limit}` tokens; their translations are empty.",
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True)
class _Window:
    """Lines that follow each other.

    Attributes:
        start: Number of the first, counted from 0.
        lines: The texts.
        lengths: Tokens of each, the end token included, int `(lines,)`.
        too_long: Whether they are too many for the model, boolean `(lines,)`.
    """

    start: int
    lines: list[str]
    lengths: np.ndarray
    too_long: np.ndarray


class _Source:
    """The file to translate.

    Args:
        path: The file.
        model: The model, for its tokenizer and its limit.
    """

    def __init__(self, path: str | os.PathLike, model: Any):
        self._path = path
        self._tokenizer = model.source_tokenizer
        self.limit = model.max_source_length
        self._index = LineIndex.of(path)
        self.lines = self._index.lines

    def digest(self) -> str:
        """Tells one content from another."""
        with open(self._path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    def windows(self, start: int, size: int) -> Iterator[_Window]:
        """The lines from `start` on, so many at a time."""
        reader = LineReader(self._path, self._index)
        for first in range(start, self.lines, size):
            lines = reader.read(first, min(first + size, self.lines))
            rows = self._tokenizer.tokenize(lines, add_end=True)
            lengths = rows.row_lengths().numpy()
            yield _Window(first, lines, lengths, lengths > (self.limit or np.inf))

    def refuse_long_lines(self, start: int, size: int) -> None:
        """Raises an error if a line from `start` on is too long for the model."""
        for window in self.windows(start, size) if self.limit else ():
            for place in np.flatnonzero(window.too_long):
                raise ValueError(
                    f"`source` must have at most `max_source_length={self.limit}` "
                    f"tokens a line; received {window.lengths[place]} tokens in line "
                    f"{window.start + place + 1} of `{self._path}`. Shorten or split "
                    'it, or leave its translation empty with `too_long="empty"`.'
                )


@dataclasses.dataclass(frozen=True)
class _Progress:
    """How far the work on a file has come, and what it depends on."""

    settings: dict[str, str]
    lines: int = 0
    size: int = 0  # bytes written
    left_empty: int = 0  # lines that were too long


class _UnfinishedFile:
    """A file that is made part by part, in several runs if need be.

    As a context manager it gives the file its name at the end, unless there was an
    error.

    Args:
        target: The file once it is whole.
        settings: What its content depends on.
        overwrite: Whether to begin anew if there is work with other settings.
    """

    def __init__(self, target: pathlib.Path, settings: dict[str, str], overwrite: bool):
        self._target = target
        self._path = target.with_name(f"{target.name}.unfinished")
        self._record = target.with_name(f"{target.name}.unfinished.json")
        self._settings = settings
        self._overwrite = overwrite

    def _found(self) -> _Progress | None:
        """The progress of an earlier run, if it can be used."""
        settings, overwrite = self._settings, self._overwrite
        if not (self._record.exists() and self._path.stat().st_size):
            return None
        try:
            progress = _Progress(**json.loads(self._record.read_text("utf-8")))
            whole = self._path.stat().st_size >= progress.size
        except (ValueError, TypeError):
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
            self.progress = self._found() or _Progress(self._settings)
        except ValueError:
            self._file.close()
            raise
        if not self.progress.lines:
            self._record.unlink(missing_ok=True)
        self._file.truncate(self.progress.size)
        return self

    def append(self, text: str, lines: int, left_empty: int) -> None:
        """Adds a part; it stays, whatever happens afterwards."""
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
        with written_whole(self._record) as file:
            file.write(json.dumps(dataclasses.asdict(self.progress)).encode())

    def __exit__(self, error_type: Any, error: Any, traceback: Any) -> None:
        self._file.close()
        if error is None:
            os.replace(self._path, self._target)
            self._record.unlink()
        elif not self.progress.lines:
            self._path.unlink()


def _check_arguments(
    model: Any,
    source: str | os.PathLike,
    target: pathlib.Path,
    window: int,
    too_long: str,
    overwrite: bool,
) -> None:
    if model.source_tokenizer is None:
        raise ValueError(
            "`model` must have tokenizers to translate texts; received a model without "
            "`source_tokenizer`. Give it tokenizers when you build it."
        )
    if not isinstance(window, Integral) or window < 1:
        raise ValueError(
            f"`window` must be an int of at least 1; received `window={window!r}`."
        )
    if too_long not in ("error", "empty"):
        raise ValueError(
            f'`too_long` must be "error" or "empty"; received `too_long={too_long!r}`.'
        )
    if target.exists() and os.path.samefile(source, target):
        raise ValueError(
            "`target` must be another file than `source`; received "
            f"`target={str(target)!r}`."
        )
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"`target` must not exist; received `target={str(target)!r}`, which does. "
            "Choose another name, or replace it with `overwrite=True`."
        )


def _model_digest(model: Any) -> str:
    """Tells a model from others by its weights and its configuration."""
    config = keras.saving.serialize_keras_object(model.get_config())
    digest = hashlib.sha256(json.dumps(_without_names(config), sort_keys=True).encode())
    for weight in model.weights:
        digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()[:16]


def _without_names(config: Any) -> Any:
    """Keras numbers the names that it gives, in one process after the other."""
    if isinstance(config, dict):
        return {k: _without_names(v) for k, v in config.items() if k != "name"}
    if isinstance(config, list | tuple):
        return [_without_names(value) for value in config]
    return config


def _translate(
    model: Any, window: _Window, options: dict[str, Any], bar: tqdm
) -> list[Hypotheses]:
    """The hypotheses of each line, best first; one empty one where there is no text."""
    hypotheses: list[Hypotheses] = [[("", 0.0)] for _ in window.lines]
    chosen = np.flatnonzero((window.lengths > 1) & ~window.too_long)
    bar.update(len(hypotheses) - len(chosen))
    if not chosen.size:
        return hypotheses
    order = chosen[np.argsort(window.lengths[chosen], kind="stable")]
    size = options["batch_size"]
    # The last part takes in what would be a small batch, of a shape of its own.
    for part in np.split(order, range(size, len(order) - size + 1, size)):
        lines = [window.lines[place] for place in part]
        found, scores = model.generate(lines, return_scores=True, **options)
        scores = scores.reshape(len(part), options["search"].num_hypotheses).tolist()
        for place, texts, row in zip(part, found, scores, strict=True):
            texts = [texts] if isinstance(texts, str) else texts
            hypotheses[place] = list(zip(texts, row, strict=True))
        bar.update(len(part))
    return hypotheses


def _best_line(number: int, hypotheses: Hypotheses) -> str:
    return f"{_one_line(hypotheses[0][0])}\n"


def _n_best_lines(number: int, hypotheses: Hypotheses) -> str:
    return "".join(
        f"{number} ||| {_one_line(text)} ||| {score:.6f}\n"
        for text, score in hypotheses
        if score > -np.inf
    )


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
