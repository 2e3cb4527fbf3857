"""Translation of files and pipes of any size, which resumes after a stop."""

import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, Never, TypeAlias, cast

import keras
import numpy as np
from tqdm.auto import tqdm

from keras_transformer.backend.ray_connection import use_loopback
from keras_transformer.decoding import BeamSearch, OutputLength, Search
from keras_transformer.decoding.lengths import warn_of_truncation
from keras_transformer.decoding.search_options import refuse_search_options
from keras_transformer.inference.file_translation.line_windows import (
    FileLines,
    LineWindow,
    ModelSide,
    PipeLines,
)
from keras_transformer.inference.file_translation.unfinished_file import UnfinishedFile
from keras_transformer.inference.phrase_dictionary import PhraseDictionary
from keras_transformer.inference.protocols import SequenceModel
from keras_transformer.inference.request import Request, check_request, check_seed
from keras_transformer_runtime.arguments import check_ints, check_one_of
from keras_transformer_runtime.files import check_new_file, written_whole
from keras_transformer_runtime.packages import require_modules

TRUNCATION_REMEDY = "Use a greater `max_length`."


class Hypothesis(NamedTuple):
    """A translation of a line, its score, and whether its end may be missing."""

    text: str
    score: float
    truncated: bool = False


Hypotheses: TypeAlias = list[Hypothesis]
# Batches of lines to the hypotheses of each line, in the order of the batches.
Decode: TypeAlias = Callable[[Iterable[list[str]]], Iterator[list[Hypotheses]]]


class _Options(NamedTuple):
    """The arguments of `generate`."""

    search: Search
    max_length: OutputLength | None
    min_length: OutputLength
    seed: int | None
    distinct_texts: bool
    batch_size: int
    dictionary: PhraseDictionary | None

    def check(self, model: SequenceModel, window: int, too_long: str) -> None:
        """Checks the options, and the arguments that both functions have."""
        request = Request(self.search, self.max_length, self.min_length)
        check_request(request, self.batch_size)
        check_seed(self.seed)
        check_ints(1, window=window)
        check_one_of(("error", "empty"), too_long=too_long)
        if self.dictionary is not None and model.target_tokenizer is not None:
            self.dictionary.check(model.target_tokenizer)

    def settings(self) -> dict[str, str]:
        """Returns the options that the translations depend on."""
        names = ("search", "max_length", "min_length", "seed", "distinct_texts")
        settings = {name: repr(getattr(self, name)) for name in names}
        if self.dictionary is not None:
            settings["dictionary"] = self.dictionary.digest()
        return settings


def translate_file(
    model: SequenceModel,
    source: str | os.PathLike,
    target: str | os.PathLike,
    search: Search | None = None,
    *,
    max_length: OutputLength | None = None,
    min_length: OutputLength = 0,
    seed: int | None = None,
    batch_size: int = 64,
    window: int = 10_000,
    n_best: bool = False,
    distinct_texts: bool = False,
    too_long: str = "error",
    overwrite: bool = False,
    workers: int = 1,
    verbose: int = 1,
    dictionary: PhraseDictionary | None = None,
    **unknown: Never,
) -> None:
    """Translates a text file of any size, one text per line.

    Line n of `target` is the translation of line n of `source`; the translation of a
    line without words is empty. Line breaks within a translation become spaces.

    The file is read in windows, whose lines are sorted by length and translated in
    batches, so memory does not grow with the file. Finished windows are written to
    `<target>.unfinished`, which is renamed to `target` at the end. After a stop, the
    same call resumes after the last finished window; `<target>.unfinished.json` has
    the number of finished lines, and identifies the text, the model and the search.

    Args:
        model: a model with tokenizers, such as `Seq2Seq`.
        source: path of the text, UTF-8, plain or gzip (`.gz`).
        target: path of the file to write; compressed if it ends in `.gz`.
        search: the search; `BeamSearch()` if `None`. Unfinished work identifies it by
            its `repr`.
        max_length: int or `RelativeLength`, maximum output length in tokens, the end
            token included; `None` = the length of the source plus 50, or
            `output_length_ratio` of the model times its length if this is more. A
            warning says how many translations reach it.
        min_length: int or `RelativeLength`, minimum output length in tokens, the end
            token included.
        seed: int of 32 bits, seed of `Sampling`; random if `None`.
        batch_size: int, number of texts decoded together.
        window: int, number of lines of a window. With more lines, the lengths in a
            batch are more equal, and a stop loses more work.
        n_best: bool, whether to write every hypothesis of the search, best first, each
            on a line `line_number ||| text ||| score`, as Moses does: numbers count
            from 0.
        distinct_texts: bool, whether each text of a line is written once, with its best
            score; see `generate`.
        too_long: treatment of lines of more than `max_source_length` tokens:
            `"error"` raises an error before the translation, `"empty"` leaves their
            translations empty and issues a warning with their number at the end.
        overwrite: bool, whether to replace an existing `target`, and to discard
            unfinished work of a call with other arguments.
        workers: int, number of processes that decode the batches, each with a copy of
            the model. If there are several, they are actors of Ray. They share the
            cores and GPUs of the cluster to which `ray.init` has connected, of the
            cluster of the environment variable RAY_ADDRESS, or of this machine. The
            batches, and so the translations, are those of one process. A stopped
            translation may resume with another number.
        verbose: 1 for a progress bar in a terminal or a notebook, 0 for no output.
        dictionary: the target phrases that must occur in the translations of lines
            with certain source phrases; see `PhraseDictionary`.
        **unknown: none. An option of a search is refused with the right call.

    Raises:
        ValueError: if an argument is out of range, the model has no tokenizers, the
            source is empty or has a line that is not UTF-8 or too long, or there is
            unfinished work of another text, model, search or options.
        FileNotFoundError: if the folder of `target` does not exist.
        FileExistsError: if `target` exists and may not be replaced.
        OSError: if a file cannot be read or written.
        ModuleNotFoundError: if `workers` is above 1 and Ray is not installed.
        TimeoutError: if the workers do not start.
        RuntimeError: if workers die repeatedly.

    Example:

    ```python
    translate_file(model, "news.en", "news.de", search=BeamSearch(num_beams=5))
    ```
    """
    refuse_search_options(translate_file, unknown)
    options = _Options(
        *(search or BeamSearch(), max_length, min_length, seed, distinct_texts),
        *(batch_size, dictionary),
    )
    options.check(model, window, too_long)
    check_ints(1, workers=workers)
    if workers > 1:
        require_modules(["ray"], f"`workers={workers}`")
    target = pathlib.Path(target)
    check_new_file(target, source, overwrite)
    text = FileLines(source, ModelSide(model))
    settings = {
        **options.settings(),
        "source": text.digest(),
        "model": _model_digest(model),
        "n_best": repr(n_best),
    }
    with UnfinishedFile(target, settings, overwrite, numbered=n_best) as unfinished:
        done = unfinished.progress.lines
        if too_long == "error":
            text.check_lengths(done, window)
        with (
            _decoder(model, options, workers) as decode,
            _progress_bar(text.lines, verbose, done) as bar,
        ):
            parts = text.windows(done, window)
            for part, written, truncated in _translated(
                decode, parts, batch_size, n_best, bar
            ):
                left_empty = int(part.too_long.sum())
                unfinished.append(written, len(part.lines), left_empty, truncated)
    progress = unfinished.progress
    _warn_of_empty_lines(progress.left_empty, text)
    warn_of_truncation(progress.truncated, progress.lines, TRUNCATION_REMEDY)


def translate_stream(
    model: SequenceModel,
    source: str | os.PathLike | BinaryIO,
    target: BinaryIO,
    search: Search | None = None,
    *,
    max_length: OutputLength | None = None,
    batch_size: int = 64,
    window: int = 512,
    n_best: bool = False,
    distinct_texts: bool = False,
    too_long: str = "error",
    verbose: int = 0,
    dictionary: PhraseDictionary | None = None,
    **unknown: Never,
) -> None:
    """Translates from a pipe, or into a pipe, as `translate_file` does.

    The lines that have arrived are translated together and written at once. A line of a
    pipe that is too long raises an error after the previous lines are written; a line
    of a file raises an error before the translation.

    Args:
        model: a model with tokenizers, such as `Seq2Seq`.
        source: the texts, one per line: a buffered binary file such as
            `sys.stdin.buffer`, or a path.
        target: binary file for the translations, such as `sys.stdout.buffer`.
        search: the search; `BeamSearch()` if `None`.
        max_length: see `translate_file`.
        batch_size: int, number of texts decoded together.
        window: int, maximum number of lines translated together.
        n_best: see `translate_file`.
        distinct_texts: see `translate_file`.
        too_long: see `translate_file`.
        verbose: 1 for a progress bar in a terminal or a notebook, 0 for no output.
        dictionary: see `translate_file`.
        **unknown: none. An option of a search is refused with the right call.

    Raises:
        ValueError: if an argument is out of range, the model has no tokenizers, or the
            source has a line that is not UTF-8 or too long, or is an empty file.
        OSError: if the source cannot be read, or the target is a closed pipe.

    Example:

    ```python
    import io

    written = io.BytesIO()
    translate_stream(model, "news.en", written)
    print(len(written.getvalue().splitlines()))  # 2
    ```
    """
    refuse_search_options(translate_stream, unknown)
    options = _Options(
        *(search or BeamSearch(), max_length, 0, None, distinct_texts, batch_size),
        dictionary=dictionary,
    )
    options.check(model, window, too_long)
    text: FileLines | PipeLines
    side, check_lengths = ModelSide(model), too_long == "error"
    if isinstance(source, str | os.PathLike):
        text = FileLines(source, side)
        if check_lengths:
            text.check_lengths(0, window)
    else:
        text = PipeLines(source, "standard input", side, check_lengths)
    count = left_empty = truncated = 0
    with (
        _decoder(model, options) as decode,
        _progress_bar(text.lines, verbose) as bar,
    ):
        parts = text.windows(0, window)
        for part, written, cut in _translated(decode, parts, batch_size, n_best, bar):
            target.write(written.encode())
            target.flush()
            count += len(part.lines)
            left_empty += int(part.too_long.sum())
            truncated += cut
    _warn_of_empty_lines(left_empty, text)
    warn_of_truncation(truncated, count, TRUNCATION_REMEDY)


@contextlib.contextmanager
def written_at_once(
    target: str | os.PathLike, source: str | os.PathLike | None, overwrite: bool
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


def _progress_bar(lines: int | None, verbose: int, done: int = 0) -> tqdm:
    """Returns a progress bar, which is shown only in a terminal or a notebook."""
    disable = None if verbose else True
    return tqdm(total=lines, initial=done, unit=" sentences", disable=disable)


def _warn_of_empty_lines(count: int, text: FileLines | PipeLines) -> None:
    if count:
        warnings.warn(
            f"Empty translations in `{text.path}`, for lines of more than "
            f"`max_source_length={text.side.limit}` tokens: {count}.",
            stacklevel=4,
        )


def _model_digest(model: SequenceModel) -> str:
    """Returns a digest of the weights and the configuration of a model."""
    config = keras.saving.serialize_keras_object(model.get_config())
    digest = hashlib.sha256(json.dumps(_relevant(config), sort_keys=True).encode())
    for weight in model.weights:
        digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()[:16]


# Names, which Keras numbers in each process, and initializers, which do not affect
# trained weights.
_NOT_IN_DIGEST = {"name", "kernel_initializer", "bias_initializer"}


def _relevant(config: object) -> object:
    """Returns the parts of a configuration that affect the outputs of a model."""
    if isinstance(config, dict):
        return {k: _relevant(v) for k, v in config.items() if k not in _NOT_IN_DIGEST}
    if isinstance(config, list | tuple):
        return [_relevant(value) for value in config]
    return config


def _decoder(
    model: SequenceModel, options: _Options, workers: int = 1
) -> contextlib.AbstractContextManager[Decode]:
    """Returns a context with the function that decodes batches."""
    decode = functools.partial(_decode, options=options)
    if workers == 1:
        one = functools.partial(map, functools.partial(decode, model))
        return contextlib.nullcontext(one)
    if not os.environ.get("RAY_ADDRESS"):
        use_loopback()
    from keras_transformer.inference.file_translation.workers import started_workers

    return started_workers(model, decode, workers)


def _translated(
    decode: Decode,
    parts: Iterator[LineWindow],
    batch_size: int,
    n_best: bool,
    bar: tqdm,
) -> Iterator[tuple[LineWindow, str, int]]:
    """Yields each window with its translations, and how many may lack their ends.

    A line without words has one hypothesis, the empty text.
    """
    write = _n_best_lines if n_best else _best_line
    # Workers decode batches of the next windows before a window is complete.
    planned, ahead = itertools.tee((part, _batches(part, batch_size)) for part in parts)
    found = decode(
        [part.lines[place] for place in places]
        for part, batches in ahead
        for places in batches
    )
    for part, batches in planned:
        hypotheses = [[Hypothesis("", 0.0)] for _ in part.lines]
        bar.update(len(hypotheses) - sum(map(len, batches)))
        for places in batches:
            for place, row in zip(places, next(found), strict=True):
                hypotheses[place] = row
            bar.update(len(places))
        lines = map(write, itertools.count(part.start), hypotheses)
        yield part, "".join(lines), sum(row[0].truncated for row in hypotheses)


def _batches(window: LineWindow, size: int) -> list[np.ndarray]:
    """Returns the places of the lines of each batch, which have similar lengths."""
    chosen = np.flatnonzero((window.lengths > 1) & ~window.too_long)
    if not chosen.size:
        return []
    order = chosen[np.argsort(window.lengths[chosen], kind="stable")]
    # The last batch is larger than `size`, since a smaller one has another shape.
    return np.split(order, range(size, len(order) - size + 1, size))


def _decode(
    model: SequenceModel, lines: list[str], *, options: _Options
) -> list[Hypotheses]:
    """Returns the hypotheses of each line, best first."""
    arguments = options._asdict()
    dictionary = arguments.pop("dictionary")
    if dictionary is not None:
        arguments["constraints"] = dictionary.constraints(lines)
    if not options.distinct_texts:
        del arguments["distinct_texts"]  # which a model of one's own may lack
    found, *arrays = model.generate(
        lines, return_scores=True, return_truncated=True, **arguments
    )
    shape = len(lines), options.search.num_hypotheses
    scores, truncated = (array.reshape(shape).tolist() for array in arrays)
    hypotheses = []
    for texts, *rows in zip(found, scores, truncated, strict=True):
        texts = [texts] if isinstance(texts, str) else texts
        # With `distinct_texts` there are fewer texts than scores.
        hypotheses.append([*map(Hypothesis, texts, *rows)])
    return hypotheses


def _best_line(number: int, hypotheses: Hypotheses) -> str:
    return f"{_one_line(hypotheses[0].text)}\n"


def _n_best_lines(number: int, hypotheses: Hypotheses) -> str:
    return "".join(
        f"{number} ||| {_one_line(text)} ||| {score:.6f}\n"
        for text, score, _ in hypotheses
        if score > -np.inf
    )


def _one_line(text: str) -> str:
    return re.sub(r"\r\n|\r|\n", " ", text.rstrip("\r\n"))
