"""Translates files and pipes of any size, and resumes after a stop."""

import abc
import contextlib
import dataclasses
import gzip
import itertools
import math
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import BinaryIO, TypeAlias, cast

import numpy as np

from keras_transformer_runtime.arguments import check_ints, check_one_of
from keras_transformer_runtime.display import Display, Stage
from keras_transformer_runtime.engines.engine import (
    Engine,
    Hypothesis,
    WordAlignment,
    warn_of_truncation,
)
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.file_translation.line_windows import (
    FileLines,
    LineWindow,
    PipeLines,
    TextSide,
)
from keras_transformer_runtime.file_translation.unfinished_file import UnfinishedFile
from keras_transformer_runtime.files import check_new_file, written_whole

Hypotheses: TypeAlias = list[Hypothesis]  # of a line, best first
# Aligns the words of texts with those of their translations; `Engine.align`.
Align: TypeAlias = Callable[[list[str], list[str]], list[WordAlignment]]


class LineTranslator(abc.ABC):
    """Translates batches of lines with a model and a search."""

    side: TextSide

    @abc.abstractmethod
    def translate(self, batches: Iterable[list[str]]) -> Iterator[list[Hypotheses]]:
        """Yields the hypotheses of the lines of each batch, in the order of batches."""

    @abc.abstractmethod
    def settings(self) -> dict[str, str]:
        """Returns what the translations depend on, the text apart."""


class EngineTranslator(LineTranslator):
    """Translates lines with an engine."""

    def __init__(self, engine: Engine, options: GenerationOptions, prefix: str = ""):
        engine.check(options, bool(prefix))
        self.side = TextSide("source", engine.max_source_length, engine.measure)
        self._engine = engine
        self._options = options
        self._prefix = prefix

    def translate(self, batches: Iterable[list[str]]) -> Iterator[list[Hypotheses]]:
        return self._engine.generate_batches(batches, self._options, self._prefix)

    def settings(self) -> dict[str, str]:
        return {
            "engine": self._engine.name,
            "model": self._engine.digest(),
            "options": repr(self._options),
            "prefix": self._prefix,
        }


def translate_file(
    translator: LineTranslator,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    window: int = 10_000,
    n_best: bool = False,
    distinct_texts: bool = False,
    align: Align | None = None,
    too_long: str = "error",
    overwrite: bool = False,
    verbose: int = 1,
) -> None:
    """Translates a file into a file; see `keras_transformer.translate_file`."""
    _check_arguments(batch_size, window, too_long)
    target = pathlib.Path(target)
    check_new_file(target, source, overwrite)
    text = FileLines(source, translator.side)
    settings = {
        **translator.settings(),
        "distinct_texts": repr(distinct_texts),
        "source": text.digest(),
        "n_best": repr(n_best),
        "align": repr(align is not None),
    }
    with UnfinishedFile(target, settings, overwrite, numbered=n_best) as unfinished:
        done = unfinished.progress.lines
        if too_long == "error":
            text.check_lengths(done, window)
        writer = _LineWriter(n_best, distinct_texts, align)
        with _progress(text.lines, verbose, done) as stage:
            parts = text.windows(done, window)
            found = _translated(translator, parts, batch_size, writer, stage)
            with contextlib.closing(found):  # which ends the workers
                for part, written, truncated in found:
                    left_empty = int(part.too_long.sum())
                    unfinished.append(written, len(part.lines), left_empty, truncated)
    progress = unfinished.progress
    _warn_of_empty_lines(progress.left_empty, text)
    warn_of_truncation(progress.truncated, progress.lines)


def translate_stream(
    translator: LineTranslator,
    source: str | os.PathLike[str] | BinaryIO,
    target: BinaryIO,
    *,
    batch_size: int = 64,
    window: int = 512,
    n_best: bool = False,
    distinct_texts: bool = False,
    align: Align | None = None,
    too_long: str = "error",
    verbose: int = 0,
) -> None:
    """Translates from a pipe, or into a pipe."""
    _check_arguments(batch_size, window, too_long)
    text: FileLines | PipeLines
    side, check_lengths = translator.side, too_long == "error"
    if isinstance(source, str | os.PathLike):
        text = FileLines(source, side)
        if check_lengths:
            text.check_lengths(0, window)
    else:
        text = PipeLines(source, "standard input", side, check_lengths)
    count = left_empty = truncated = 0
    writer = _LineWriter(n_best, distinct_texts, align)
    with _progress(text.lines, verbose) as stage:
        parts = text.windows(0, window)
        for part, written, cut in _translated(
            translator, parts, batch_size, writer, stage
        ):
            target.write(written.encode())
            target.flush()
            count += len(part.lines)
            left_empty += int(part.too_long.sum())
            truncated += cut
    _warn_of_empty_lines(left_empty, text)
    warn_of_truncation(truncated, count)


def _check_arguments(batch_size: int, window: int, too_long: str) -> None:
    check_ints(1, batch_size=batch_size, window=window)
    check_one_of(("error", "empty"), too_long=too_long)


@contextlib.contextmanager
def written_at_once(
    target: str | os.PathLike[str],
    source: str | os.PathLike[str] | None,
    overwrite: bool,
) -> Iterator[BinaryIO]:
    """Opens a file for a translation that does not resume after a stop."""
    target = pathlib.Path(target)
    check_new_file(target, source, overwrite)
    with written_whole(target) as file:
        if target.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
            yield cast(BinaryIO, compressed)


def _progress(
    lines: int | None, verbose: int, done: int = 0
) -> contextlib.AbstractContextManager[Stage]:
    """Shows the progress in a terminal or a notebook, and not elsewhere."""
    stage = Stage("Translating", lines, done, unit="sentences")
    return Display(None if verbose else 0).motion(stage)


def _warn_of_empty_lines(count: int, text: FileLines | PipeLines) -> None:
    if count:
        warnings.warn(
            f"Empty translations in `{text.path}`, for lines of more than "
            f"`max_source_length={text.side.limit}` tokens: {count}.",
            stacklevel=4,
        )


def _translated(
    translator: LineTranslator,
    parts: Iterator[LineWindow],
    batch_size: int,
    writer: "_LineWriter",
    stage: Stage,
) -> Generator[tuple[LineWindow, str, int]]:
    """Yields each window with its translations, and how many may lack their ends.

    A line without words has one hypothesis, the empty text.
    """
    # Batches of the next windows are decoded before a window is complete.
    planned, ahead = itertools.tee((part, _batches(part, batch_size)) for part in parts)
    found = translator.translate(
        [part.lines[place] for place in places]
        for part, batches in ahead
        for places in batches
    )
    for part, batches in planned:
        hypotheses = [[Hypothesis("")] for _ in part.lines]
        stage.done += len(hypotheses) - sum(map(len, batches))
        for places in batches:
            for place, row in zip(places, next(found), strict=True):
                hypotheses[place] = row
            stage.done += len(places)
        written = writer.write(part, hypotheses)
        yield part, written, sum(row[0].truncated for row in hypotheses)


def _batches(window: LineWindow, size: int) -> list[np.ndarray]:
    """Returns the places of the lines of each batch, which have similar lengths."""
    chosen = np.flatnonzero((window.lengths > 0) & ~window.too_long)
    if not chosen.size:
        return []
    order = chosen[np.argsort(window.lengths[chosen], kind="stable")]
    # The last batch is larger than `size`, since a smaller one has another shape.
    return np.split(order, range(size, len(order) - size + 1, size))


@dataclasses.dataclass(frozen=True)
class _LineWriter:
    """Writes the translations of lines: the best ones, or all in the format of Moses.

    With `distinct_texts`, a text that several hypotheses have is written once. With
    `align`, the pairs of aligned words follow, in the format of Pharaoh.
    """

    n_best: bool
    distinct_texts: bool
    align: Align | None

    def write(self, window: LineWindow, hypotheses: list[Hypotheses]) -> str:
        """Returns the lines of the translations of a window."""
        sources, texts, rows = [], [], []
        lines = zip(window.lines, hypotheses, strict=True)
        for number, (line, found) in enumerate(lines, start=window.start):
            for hypothesis in self._chosen(found):
                text = _one_line(hypothesis.text)
                score = f"{hypothesis.score:.6f}"
                rows.append([f"{number}", text, score] if self.n_best else [text])
                sources.append(line)
                texts.append(text)
        if self.align is not None:
            for row, pairs in zip(rows, self.align(sources, texts), strict=True):
                row.append(" ".join(f"{source}-{target}" for source, target in pairs))
        return "".join(" ||| ".join(row) + "\n" for row in rows)

    def _chosen(self, hypotheses: Hypotheses) -> Hypotheses:
        """Returns the hypotheses of a line that are written."""
        if not self.n_best:
            return hypotheses[:1]
        if self.distinct_texts:
            best = {each.text: each for each in reversed(hypotheses)}
            hypotheses = [each for each in hypotheses if best[each.text] is each]
        return [each for each in hypotheses if each.score > -math.inf]


def _one_line(text: str) -> str:
    return re.sub(r"\r\n|\r|\n", " ", text.rstrip("\r\n"))
