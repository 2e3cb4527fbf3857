"""Callback that translates a validation set and logs BLEU, chrF and other metrics."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import keras
import numpy as np

from keras_transformer.backend.processes import of_first_process
from keras_transformer.decoding import Search
from keras_transformer.types import Logs
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.engines.engine import warn_of_truncation

MAX_SAMPLE_LENGTH = 160  # Characters.


# A model, the sources and the search to texts, and whether each may lack its end.
Translate: TypeAlias = Callable[
    [Any, Sequence[str], Search | None], tuple[list[str], np.ndarray]
]


class Translator(Protocol):
    """A model that translates texts, such as `Seq2Seq` with tokenizers."""

    max_source_length: int | None
    source_tokenizer: Any  # `Tokenizer`, which loads TensorFlow


class TranslationQuality(keras.callbacks.Callback):
    """Translates a validation set after each epoch and logs BLEU, chrF or others.

    The logs of the epoch get `val_bleu` and `val_chrf`, the scores of sacreBLEU from 0
    to 100, or those of `metrics`. They are in the history, and callbacks that come
    later in the list can use them: `TrainingProgress`, `ModelCheckpoint`,
    `EarlyStopping("val_bleu", mode="max")`, `CSVLogger`, `TensorBoard`.

    With `every` above 1, the validation set is translated after the first epoch of a
    run and after every epoch whose number, counted from 1, is a multiple of `every`.
    In the other epochs the scores are NaN. Callbacks never treat NaN as the best score,
    but it appears in columns and file names. The `patience` of a callback counts all
    epochs. If `EarlyStopping` has a `start_from_epoch`, the validation set must be
    translated after the first epoch that it monitors, number `start_from_epoch + 1`.

    The model generates with its current weights. To evaluate the moving averages of an
    optimizer with `use_ema=True`, put
    `keras.callbacks.SwapEMAWeights(swap_on_epoch=True)` before this callback: it leaves
    the averages in the model until the next epoch begins. The search is compiled only
    in the first epoch.

    Args:
        sources: list of str, the texts to translate.
        references: list with one entry per source: str, or list of str if several
            translations are correct.
        search: a search that returns one hypothesis. `None` = the default of
            `Seq2Seq.generate`, a beam search with 4 beams. `GreedySearch()` is several
            times faster.
        every: int >= 1, number of epochs from one translation to the next.
        lowercase: bool, whether letter case is ignored (option `-lc` of sacreBLEU).
        samples: int >= 0, number of translations to print, from the first source on;
            0 = none.
        tokenize: str, tokenization of sacreBLEU for BLEU: `"zh"` for Chinese,
            `"ja-mecab"` for Japanese; see `evaluation.bleu`.
        metrics: list of str, names of `evaluation.METRICS`: `"bleu"`, `"chrf"`,
            `"exact_match"`, `"token_error_rate"`, `"character_error_rate"`.
        translate: function of the model, the sources and the search, which returns a
            list of texts and whether each has reached the maximum length, a boolean
            array `(texts,)`. `None` = `model.generate`.

    Raises:
        ValueError: if an argument has an invalid value; from `fit`, if the model has no
            tokenizers, or if a source is too long for it or has no reference.
        TypeError: from `fit`, if a reference is not a str.
        ModuleNotFoundError: if a package that `tokenize` requires is not installed.
        OSError: if sacreBLEU cannot download a file that `tokenize` requires.

    Example:

    ```python
    quality = TranslationQuality(valid_sources, valid_references, GreedySearch())
    best = keras.callbacks.ModelCheckpoint(
        "best.keras", monitor="val_bleu", mode="max", save_best_only=True
    )
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=5)
    callbacks = [quality, best, stop]
    model.fit(train.dataset, epochs=40, shuffle=False, callbacks=callbacks)
    ```

    References:
        - [Papineni et al., 2002](https://aclanthology.org/P02-1040) (BLEU)
        - [Popović, 2015](https://aclanthology.org/W15-3049) (chrF)
        - [Post, 2018](https://arxiv.org/abs/1804.08771) (sacreBLEU)
    """

    # Checkpoints store this name.
    checkpointed_attributes = ("_has_begun",)

    def __init__(
        self,
        sources: Sequence[str],
        references: Sequence[str | Sequence[str]],
        search: Search | None = None,
        every: int = 1,
        lowercase: bool = False,
        samples: int = 0,
        tokenize: str = "13a",
        metrics: Sequence[str] = ("bleu", "chrf"),
        translate: Translate | None = None,
    ) -> None:
        super().__init__()
        _check_corpus(sources, references)
        if search is not None and search.num_hypotheses != 1:
            raise ValueError(
                "`search` must return one hypothesis; received a search with "
                f"`num_hypotheses={search.num_hypotheses}`. Use `num_hypotheses=1`."
            )
        check_ints(1, every=every)
        check_ints(0, samples=samples)
        # Raises an error before training if sacreBLEU is missing.
        from keras_transformer.evaluation import METRICS, check_tokenize, text_scores

        check_tokenize(tokenize)
        unknown = [name for name in metrics if name not in METRICS]
        if isinstance(metrics, str) or unknown or not metrics:
            raise ValueError(
                f"`metrics` must be a list of names of {[*METRICS]}; received "
                f"`metrics={metrics!r}`."
            )
        self._scores = text_scores
        self.sources = sources
        self.references = references
        self.search = search
        self.every = every
        self.lowercase = lowercase
        self.samples = samples
        self.tokenize = tokenize
        self.metrics = tuple(metrics)
        self._translate = translate or _generate

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if self.model.source_tokenizer is None:
            raise ValueError(
                "The model must have tokenizers to translate texts; it has none. "
                "Create it with `source_tokenizer` and `target_tokenizer`."
            )
        check_source_lengths(self.model, "sources", self.sources)
        self._has_begun = False
        self._truncated = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = {} if logs is None else logs
        if self._has_begun and (epoch + 1) % self.every:
            logs.update({f"val_{name}": math.nan for name in self.metrics})
            return
        self._has_begun = True
        translations, truncated = self._translate(self.model, self.sources, self.search)
        self._truncated = int(truncated.sum())
        scores = self._scores(
            translations, self.references, self.lowercase, self.tokenize
        )
        # Other devices may round differently, and callbacks compare these values.
        values = of_first_process([scores[name].score for name in self.metrics])
        logs.update({f"val_{n}": v for n, v in zip(self.metrics, values, strict=True)})
        if self.samples:
            self._print(translations)

    def on_train_end(self, logs: Logs | None = None) -> None:
        # At the beginning of a training, many outputs repeat themselves.
        warn_of_truncation(
            self._truncated,
            len(self.sources),
            "Train longer, or raise the `output_length_ratio` of the model.",
        )

    def _print(self, translations: list[str]) -> None:
        lines = []
        rows = zip(self.sources, self.references, translations, strict=True)
        for source, reference, translation in [*rows][: self.samples]:
            first = reference if isinstance(reference, str) else reference[0]
            lines += ["", f"  source:    {_truncate(source)}"]
            lines += [f"  reference: {_truncate(first)}"]
            lines += [f"  model:     {_truncate(translation)}"]
        print(*lines, sep="\n")


def _generate(
    model: keras.Model, sources: Sequence[str], search: Search | None
) -> tuple[list[str], np.ndarray]:
    found: tuple[list[str], np.ndarray] = model.generate(
        sources, search=search, return_truncated=True
    )
    return found


def _truncate(text: str) -> str:
    """Shortens a text. The output of an untrained model may reach the length limit."""
    if len(text) <= MAX_SAMPLE_LENGTH:
        return text
    return f"{text[: MAX_SAMPLE_LENGTH - 1]}…"


def check_source_lengths(
    model: Translator,
    argument: str,
    sources: Sequence[str],
    option: str = "max_source_length",
) -> None:
    """Checks that texts are not too long for a model, and their language tokens."""
    limit = model.max_source_length
    tokenizer = model.source_tokenizer
    rows = tokenizer.tokenize(list(sources), add_end=True).to_list()
    for number, (text, row) in enumerate(zip(sources, rows, strict=True), start=1):
        tokenizer.check_language_token(text, row, argument, f"line {number}")
        if limit is not None and len(row) > limit:
            raise ValueError(
                f"`{argument}` must have at most `{option}={limit}` tokens per line; "
                f"received {len(row)} in line {number}. Shorten or split it, or use a "
                f"greater `{option}`."
            )


def _check_corpus(sources: Sequence[object], references: Sequence[object]) -> None:
    """Raises `ValueError` if there is not one reference for each source."""
    for name, value in (("sources", sources), ("references", references)):
        if isinstance(value, str) or not len(value):
            raise ValueError(
                f"`{name}` must be a list with one entry per sentence, and not empty; "
                f"received `{name}={value!r}`."
            )
    if len(sources) != len(references):
        raise ValueError(
            f"`references` must have one entry for each of the {len(sources)} sources; "
            f"received `len(references)={len(references)}`."
        )
