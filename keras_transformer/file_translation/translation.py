"""Translation of files and pipes with a Keras model."""

import functools
import hashlib
import json
import os
from collections.abc import Generator, Iterable, Sequence
from typing import BinaryIO, Unpack

import keras

from keras_transformer.backend.ray_connection import use_loopback
from keras_transformer.decoding import BeamSearch, OutputLength, Search
from keras_transformer.decoding.generation_options import chosen_search
from keras_transformer.inference.request import Request, check_request, check_seed
from keras_transformer.models import GenerativeModel
from keras_transformer.text import Tokenizer
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.engines.generation_options import SearchOptions
from keras_transformer_runtime.file_translation import translation
from keras_transformer_runtime.file_translation.line_windows import TextSide
from keras_transformer_runtime.file_translation.translation import (
    Hypotheses,
    LineTranslator,
)
from keras_transformer_runtime.packages import require_modules
from keras_transformer_runtime.phrase_dictionary import PhraseDictionary, check_spelled


class ModelTranslator(LineTranslator):
    """Translates lines with a Keras model, in one process or in several."""

    def __init__(
        self,
        model: GenerativeModel,
        search: Search | None = None,
        *,
        max_length: OutputLength | None = None,
        min_length: OutputLength = 0,
        seed: int | None = None,
        batch_size: int = 64,
        dictionary: PhraseDictionary | None = None,
        workers: int = 1,
        prefix: str = "",
        stop: Sequence[str] = (),
    ):
        self.side = model_side(model)
        self._model = model
        self._request = Request(search or BeamSearch(), max_length, min_length)
        self._seed = seed
        self._batch_size = batch_size
        self._dictionary = dictionary
        self._workers = workers
        self._prefix, self._stop = prefix, tuple(stop)
        check_request(self._request, batch_size)
        check_seed(seed)
        check_ints(1, workers=workers)
        if workers > 1:
            require_modules(["ray"], f"`workers={workers}`")
        if dictionary is not None and model.target_tokenizer is not None:
            check_dictionary(dictionary, model.target_tokenizer)

    def settings(self) -> dict[str, str]:
        request = self._request
        settings = {
            **{name: repr(value) for name, value in request._asdict().items()},
            "seed": repr(self._seed),
            "model": model_digest(self._model),
        }
        if self._dictionary is not None:
            settings["dictionary"] = self._dictionary.digest()
        if self._prefix or self._stop:
            settings |= {"prefix": self._prefix, "stop": repr(self._stop)}
        return settings

    def translate(self, batches: Iterable[list[str]]) -> Generator[list[Hypotheses]]:
        decode = functools.partial(
            _decode,
            request=self._request,
            seed=self._seed,
            batch_size=self._batch_size,
            dictionary=self._dictionary,
            prefix=self._prefix,
            stop=self._stop,
        )
        if self._workers == 1:
            for batch in batches:
                yield decode(self._model, batch)
            return
        if not os.environ.get("RAY_ADDRESS"):
            use_loopback()
        from keras_transformer.file_translation.workers import started_workers

        with started_workers(self._model, decode, self._workers) as decode_in_order:
            yield from decode_in_order(batches)


def check_dictionary(dictionary: PhraseDictionary, tokenizer: Tokenizer) -> None:
    """Checks that the target vocabulary can spell the target phrases."""
    targets = dictionary.targets
    rows = tokenizer.tokenize(targets).to_list()
    unknown = tokenizer.unknown_token_id
    check_spelled(targets, [bool(row) and unknown not in row for row in rows])


def _decode(
    model: GenerativeModel,
    lines: list[str],
    *,
    request: Request,
    seed: int | None,
    batch_size: int,
    dictionary: PhraseDictionary | None,
    prefix: str,
    stop: Sequence[str],
) -> list[Hypotheses]:
    """Returns the hypotheses of each line, best first."""
    found, *arrays = model.generate(
        lines,
        **request._asdict(),
        seed=seed,
        batch_size=batch_size,
        return_scores=True,
        return_truncated=True,
        constraints=dictionary.constraints(lines) if dictionary is not None else None,
        prefix=[prefix] * len(lines) if prefix else None,
        stop=stop,
    )
    shape = len(lines), request.search.num_hypotheses
    scores, truncated = (array.reshape(shape).tolist() for array in arrays)
    return [
        [*map(Hypothesis, [texts] if isinstance(texts, str) else texts, *rows)]
        for texts, *rows in zip(found, scores, truncated, strict=True)
    ]


def model_side(model: GenerativeModel, name: str = "source") -> TextSide:
    """Returns the source side or the target side of a model with tokenizers."""
    is_source = name == "source"
    limit = model.max_source_length if is_source else model.max_target_length
    tokenizer = model.source_tokenizer if is_source else model.target_tokenizer
    if tokenizer is None:
        raise ValueError(
            "`model` must have tokenizers to translate texts; received a model "
            f"without `{name}_tokenizer`. Pass tokenizers when you build it."
        )

    def measure(texts: Sequence[str], side: str, first: int) -> list[int]:
        rows = tokenizer.tokenize(texts, add_end=True).to_list()
        lengths = []
        for number, (text, row) in enumerate(zip(texts, rows, strict=True), first):
            tokenizer.check_language_token(text, row, side, f"line {number}")
            lengths.append(len(row) if tokenizer.has_words(text, row) else 0)
        return lengths

    return TextSide(name, limit, measure)


def translate_file(
    model: GenerativeModel,
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
    **options: Unpack[SearchOptions],
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
        **options: options of the search by name; see `GenerativeModel.generate`.

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
    translator = ModelTranslator(
        model,
        chosen_search("translate_file", search, BeamSearch(), options),
        max_length=max_length,
        min_length=min_length,
        seed=seed,
        batch_size=batch_size,
        dictionary=dictionary,
        workers=workers,
    )
    translation.translate_file(
        translator,
        source,
        target,
        batch_size=batch_size,
        window=window,
        n_best=n_best,
        distinct_texts=distinct_texts,
        too_long=too_long,
        overwrite=overwrite,
        verbose=verbose,
    )


def translate_stream(
    model: GenerativeModel,
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
    **options: Unpack[SearchOptions],
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
        **options: options of the search by name; see `GenerativeModel.generate`.

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
    translator = ModelTranslator(
        model,
        chosen_search("translate_stream", search, BeamSearch(), options),
        max_length=max_length,
        batch_size=batch_size,
        dictionary=dictionary,
    )
    translation.translate_stream(
        translator,
        source,
        target,
        batch_size=batch_size,
        window=window,
        n_best=n_best,
        distinct_texts=distinct_texts,
        too_long=too_long,
        verbose=verbose,
    )


def model_digest(model: GenerativeModel) -> str:
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
