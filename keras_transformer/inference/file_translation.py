"""Translates texts of any size, in files or in pipes; a killed run goes on."""

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import keras
import numpy as np
from tqdm.auto import tqdm

from keras_transformer.arguments import check_ints
from keras_transformer.decoding import BeamSearch, RelativeLength, Search
from keras_transformer.files import written_whole
from keras_transformer.inference.line_windows import (
    ArrivingLines,
    FileLines,
    Side,
    Window,
)
from keras_transformer.inference.request import Request, check_request, check_seed
from keras_transformer.inference.unfinished_file import UnfinishedFile

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
    _check_arguments(window, too_long)
    _check_target(target, source, overwrite)
    text = FileLines(source, Side(model))
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
    with UnfinishedFile(target, settings, overwrite) as unfinished:
        done = unfinished.progress.lines
        if too_long == "error":
            text.refuse_long_lines(done, window)
        with tqdm(
            total=text.lines, initial=done, unit=" sentences", disable=not verbose
        ) as bar:
            parts = text.windows(done, window)
            for part, written in _translated(model, parts, options, n_best, bar):
                left_empty = int(part.too_long.sum())
                unfinished.append(written, len(part.lines), left_empty)
    _warn_of_empty_lines(unfinished.progress.left_empty, text)


def translate_stream(
    model: Any,
    source: str | os.PathLike | BinaryIO,
    target: BinaryIO,
    search: Search | None = None,
    *,
    batch_size: int = 64,
    window: int = 512,
    n_best: bool = False,
    too_long: str = "error",
    verbose: int = 0,
) -> None:
    """Translates a text into a pipe, or what comes from one, as `translate_file` does.

    Lines that have come are translated together, and written at once. A line of a pipe
    that is too long is an error when its turn comes; in a file it is one before
    anything is translated.

    Args:
        model: a `Seq2Seq` with tokenizers.
        source: the text, a line each: a buffered binary file such as
            `sys.stdin.buffer`, or a path.
        target: binary file that gets the translations, such as `sys.stdout.buffer`.
        search: how to search; `BeamSearch()` if `None`.
        batch_size: int, texts decoded together.
        window: int, most lines that wait for each other; fewer, where fewer have come.
        n_best: see `translate_file`.
        too_long: see `translate_file`.
        verbose: 1 for a progress bar, 0 for none.

    Raises:
        ValueError: if an argument is out of range, the model has no tokenizers, or the
            source has a line that is not UTF-8 or too long, or is an empty file.
        OSError: if the source cannot be read, or nobody reads the target any more.

    Example:

    ```python
    import io

    written = io.BytesIO()
    translate_stream(model, "news.en", written)
    print(len(written.getvalue().splitlines()))  # 2
    ```
    """
    search = search or BeamSearch()
    check_request(Request(search, None, 0), batch_size)
    _check_arguments(window, too_long)
    text: FileLines | ArrivingLines
    refuses = too_long == "error"
    if isinstance(source, str | os.PathLike):
        text = FileLines(source, Side(model))
        if refuses:
            text.refuse_long_lines(0, window)
    else:
        text = ArrivingLines(source, "standard input", Side(model), refuses)
    options = {"search": search, "batch_size": batch_size}
    left_empty = 0
    with tqdm(total=text.lines, unit=" sentences", disable=not verbose) as bar:
        parts = text.windows(0, window)
        for part, written in _translated(model, parts, options, n_best, bar):
            target.write(written.encode())
            target.flush()
            left_empty += int(part.too_long.sum())
    _warn_of_empty_lines(left_empty, text)


@contextlib.contextmanager
def written_at_once(
    target: str | os.PathLike, source: str | os.PathLike | None, overwrite: bool
) -> Iterator[BinaryIO]:
    """Opens a file for a translation that cannot go on after a stop.

    Args:
        target: the file, which is there once it is whole; compressed if it ends in
            `.gz`.
        source: the file that is translated, if it is one.
        overwrite: whether `target` is replaced if it exists.

    Yields:
        The file to write to.

    Raises:
        ValueError: if both are the same file.
        FileExistsError: if `target` exists and may not be replaced.
    """
    target = pathlib.Path(target)
    _check_target(target, source, overwrite)
    with written_whole(target) as file:
        if target.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
            yield cast(BinaryIO, compressed)


def _check_arguments(window: int, too_long: str) -> None:
    check_ints(1, window=window)
    if too_long not in ("error", "empty"):
        raise ValueError(
            f'`too_long` must be "error" or "empty"; received `too_long={too_long!r}`.'
        )


def _check_target(
    target: pathlib.Path, source: str | os.PathLike | None, overwrite: bool
) -> None:
    if target.exists() and source is not None and os.path.samefile(source, target):
        raise ValueError(
            "`target` must be another file than `source`; received "
            f"`target={str(target)!r}`."
        )
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"`target` must not exist; received `target={str(target)!r}`, which does. "
            "Choose another name, or replace it with `overwrite=True`."
        )


def _warn_of_empty_lines(count: int, text: FileLines | ArrivingLines) -> None:
    if count:
        warnings.warn(
            f"Translations of `{text.path}` that are left empty, as the lines have "
            f"more than `max_source_length={text.side.limit}` tokens: {count}.",
            stacklevel=3,
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


def _translated(
    model: Any,
    parts: Iterator[Window],
    options: dict[str, Any],
    n_best: bool,
    bar: tqdm,
) -> Iterator[tuple[Window, str]]:
    """Each window with the lines to write of it."""
    write = _n_best_lines if n_best else _best_line
    for part in parts:
        hypotheses = _translate(model, part, options, bar)
        yield part, "".join(map(write, itertools.count(part.start), hypotheses))


def _translate(
    model: Any, window: Window, options: dict[str, Any], bar: tqdm
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
